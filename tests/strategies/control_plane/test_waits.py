"""Waits of all processes, as tables: which can still end, and the messages about those that cannot."""

from __future__ import annotations

import pytest

from strategies.control_plane import Wait, verdict
from strategies.control_plane.waits import can_go_on, from_text, lack_members, to_text


def wait(key: str, *members: int, form: str = "", kind: str = "all_reduce", what: str = "") -> Wait:
    return Wait(key, members, kind, what, form)


A, B = wait("1/1", 0, 1), wait("1/2", 0, 1)


@pytest.mark.parametrize(
    ("waits", "size", "expected"),
    [
        # One process computes.
        ({0: [A]}, 2, True),
        ({0: [A], 1: []}, 2, True),
        # A large message may be under way.
        ({0: [A], 1: [A]}, 2, True),
        ({0: [A], 1: [B]}, 2, False),
        ({0: [A, B], 1: [B]}, 2, True),
        # A pipeline of three: the first stage has sent, the others wait for each other.
        ({0: [wait("p/0", 0, 1)], 1: [wait("p/0", 0, 1), wait("p/1", 1, 2)], 2: [wait("p/1", 1, 2)]}, 3, True),
        ({0: [wait("p/0", 0, 1)], 1: [wait("p/1", 1, 2)], 2: [wait("p/2", 0, 2)]}, 3, False),
        # The same collective with different sizes; one whose size is not known.
        ({0: [wait("1", 0, 1, form="float32[3]")], 1: [wait("1", 0, 1, form="float32[4]")]}, 2, False),
        ({0: [wait("1", 0, 1, form="float32[3]")], 1: [wait("1", 0, 1)]}, 2, True),
        # A receive that was posted early does not wait, a broadcast does.
        ({0: [wait("g", 0, 1, kind="receive")], 1: [B]}, 2, True),
        ({0: [wait("g", 0, 1, kind="receive"), A], 1: [B]}, 2, False),
        (
            {0: [wait("g", 0, 1, kind="broadcast", form="a")], 1: [wait("g", 0, 1, kind="broadcast", form="b")]},
            2,
            False,
        ),
    ],
)
def test_what_can_go_on(waits: dict[int, list[Wait]], size: int, expected: bool) -> None:
    assert can_go_on({rank: from_text(to_text(own)) for rank, own in waits.items()}, size) == expected


def test_who_waits_for_one_that_has_left() -> None:
    assert lack_members({0: [A], 2: [wait("3", 2, 3)]}, {1: "gone"}) == {0: A}
    assert lack_members({0: [A]}, {}) == {}


def test_verdicts() -> None:
    sums = wait("7", 0, 1, 2, 3, what="gradients of conv4/kernel")
    where = dict.fromkeys((0, 1, 2), "in fit, epoch 1, after step 812")
    assert verdict.deserted(3, "ended after fit, after step 812", {0: [sums], 1: [sums, A], 2: [sums]}, where) == (
        "Rank 3 ended after fit, after step 812; ranks 0-2 wait for the all_reduce of gradients of conv4/kernel, in "
        "fit, epoch 1, after step 812."
    )
    assert verdict.deserted(1, "", {}, {}) == "Rank 1 was killed, or its host is gone."
    lengths = wait("9", 0, 1, 2, 3, kind="all_gather", what="lengths of datasets")
    others = {rank: [sums] for rank in (0, 2, 3)}
    text = verdict.diverged({1: [lengths], **others}, {**where, 3: where[0], 1: "in evaluate, before its first step"})
    assert text.startswith(
        "The ranks run different programs: rank 1 waits for the all_gather of lengths of datasets, in evaluate, before "
        "its first step; ranks 0, 2, 3 wait for the all_reduce of gradients of conv4/kernel, in fit, epoch 1, after "
        "step 812. All ranks have to"
    )
    text = verdict.absent({0: [sums]}, {0: "in fit", 1: "in fit, at train.py:3 in slow"}, [2, 3], 600.0)
    assert text == (
        "Rank 0 has waited 600 s for the all_reduce of gradients of conv4/kernel, in fit; rank 1 is in fit, at "
        "train.py:3 in slow; ranks 2, 3 do not answer: stopped, or on a host that is cut off."
    )
    assert [verdict.ranks_in_words(ranks) for ranks in ([3], [1, 0], [4, 2, 5, 3, 0])] == [
        "Rank 3",
        "Ranks 0, 1",
        "Ranks 0, 2-5",
    ]
