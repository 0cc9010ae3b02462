"""Verdicts of members whose stores are connected in one process: none for a live job, the right one for a hang."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strategies.control_plane import DistributedError, KeyValueStore, Member, Wait, findings, keys, member
from strategies.control_plane.channel import Channel
from strategies.control_plane.key_value_store import PROTOCOL
from strategies.control_plane.waits import RECEIVE, to_text
from tests.clock import Clock

LIMIT_SECONDS = 100.0
SUM, OTHER = Wait("1/1", (0, 1), "all_reduce", "gradients"), Wait("1/2", (0, 1), "all_gather", "batches")


class Ticking(Clock):
    """No two times are the same: members name their questions by the time."""

    def monotonic(self) -> float:
        self.seconds += 1e-6
        return self.seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Returns the clock of the delays before a verdict."""
    clock = Ticking()
    monkeypatch.setattr(findings, "time", clock)
    monkeypatch.setattr(member, "_SECONDS_AFTER_FAILURE", 0.0)
    return clock


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """Yields three members, joined by rank 0."""
    pairs = {rank: [Channel(end, PROTOCOL) for end in socket.socketpair()] for rank in (1, 2)}
    stores = [KeyValueStore(0, 3, {rank: ends[0] for rank, ends in pairs.items()})]
    stores += [KeyValueStore(rank, 3, {0: ends[1]}) for rank, ends in pairs.items()]
    made = [Member(rank, 3, store) for rank, store in enumerate(stores)]
    yield made
    for each in reversed(made):
        each.leave()


def found(by: Member, clock: Clock) -> str:
    """Returns the reason that is found, however long the answers of the other threads take."""
    end = time.monotonic() + LIMIT_SECONDS
    while not (reason := by.found()):
        assert time.monotonic() < end
        clock.sleep(0.5)
        time.sleep(0.001)
    return reason


def finds_nothing(by: Member, clock: Clock) -> bool:
    """Returns True if the member finds nothing within twice the longest delay."""
    for _ in range(int(2 * findings._SECONDS_FOR_FAILED / 0.5)):
        if by.found():
            return False
        clock.sleep(0.5)
    return True


def post_waits(members: list[Member], *waits: list[Wait]) -> None:
    """Posts the waits of each member, and returns when all members have received them."""
    for each, own in zip(members, waits, strict=True):
        each.note_waits("test", own)
    texts = [to_text(own) for own in waits]
    for each in members:
        assert waited(
            each._required(),
            lambda store: [store.read(keys.WAITS).get(rank, to_text([])) for rank in range(len(texts))] == texts,
        )


def waited(store: KeyValueStore, condition: Callable[[KeyValueStore], object]) -> bool:
    return store.wait(lambda: bool(condition(store)), LIMIT_SECONDS)


def seen_by_all(members: list[Member], key: str) -> None:
    for each in members:
        assert waited(each._required(), lambda store: store.read(key))


def test_other_programs_are_found_by_one_and_told_to_all(members: list[Member], clock: Clock) -> None:
    post_waits(members, [SUM], [OTHER], [OTHER])
    reason = found(members[0], clock)
    assert reason.startswith("The ranks run different programs: rank 0 waits for the all_reduce of gradients")
    assert found(members[2], clock) == reason


def test_receives_that_are_posted_early_are_no_waits(members: list[Member], clock: Clock) -> None:
    """Both stages of a pipeline compute slowly what the other one receives."""
    post_waits(members, [Wait("g/1", (0, 1), RECEIVE)], [Wait("a/2", (0, 1), RECEIVE)], [SUM])
    assert finds_nothing(members[0], clock)


def test_who_computes_may_bring_forth_what_others_wait_for(members: list[Member], clock: Clock) -> None:
    post_waits(members, [SUM], [OTHER], [OTHER])
    members[1].note_waits("test", [OTHER], is_busy=True)
    assert finds_nothing(members[0], clock)
    members[1].note_waits("test", [OTHER])
    assert "different programs" in found(members[0], clock)


def test_who_does_not_answer_may_have_paused_behind_its_wait(
    members: list[Member], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    post_waits(members, [OTHER], [SUM], [OTHER])
    monkeypatch.setattr(findings, "_SECONDS_TO_ANSWER", 0.05)
    with members[1]._required()._changed:
        # The lock holds up its message handling, as SIGSTOP would.
        assert finds_nothing(members[0], clock)


def test_an_error_that_was_handled_is_forgotten(members: list[Member], clock: Clock) -> None:
    members[1].note_failure(ValueError("handled"))
    seen_by_all(members, keys.FAILED)
    post_waits(members, [], [SUM], [])
    # Rank 1 itself waits again: it has gone on.
    assert finds_nothing(members[1], clock)
    post_waits(members, [SUM], [], [])
    members[1].note_progress()
    assert (
        members[0]._required().wait(lambda: not any(members[0]._required().read(keys.FAILED).values()), LIMIT_SECONDS)
    )
    assert finds_nothing(members[0], clock)


def test_an_error_that_all_raised_is_handled_by_all(members: list[Member], clock: Clock) -> None:
    for each in members:
        each.note_failure(ValueError("of all"))
    seen_by_all(members, keys.FAILED)
    members[0].forget_failure()
    post_waits(members, [SUM], [], [])
    # Rank 1 may make a data set for minutes before it continues.
    assert finds_nothing(members[0], clock)
    members[1].note_failure(ValueError("another"))
    assert waited(members[0]._required(), lambda store: "another" in store.read(keys.FAILED).get(1, ""))
    assert found(members[0], clock).startswith("Rank 1 failed with ValueError: another")


def test_an_error_that_was_not(members: list[Member], clock: Clock) -> None:
    members[1].note_failure(ValueError("of the user"))
    seen_by_all(members, keys.FAILED)
    post_waits(members, [SUM], [], [])
    assert found(members[0], clock).startswith("Rank 1 failed with ValueError: of the user")


def test_the_first_to_leave_is_the_cause(members: list[Member]) -> None:
    post_waits(members, [SUM], [SUM], [])
    members[2]._required()._links[0]._socket.shutdown(socket.SHUT_RDWR)
    for each in members[:2]:
        assert waited(each._required(), lambda store: 2 in store.left())
    # An error that follows from the end of rank 2.
    members[0].note_failure(DistributedError("Rank 2 was killed."))
    reason = members[1].explanation()
    assert reason is not None
    assert reason.startswith("Rank 2 was killed, or its host is gone")
    assert members[0].explanation() == reason


def test_a_failure_is_told_also_where_the_farewell_is_lost(members: list[Member]) -> None:
    members[2].note_failure(ValueError("of the user"))
    seen_by_all(members, keys.FAILED)
    members[2]._required()._links[0]._socket.shutdown(socket.SHUT_RDWR)
    assert (members[0].explanation() or "").startswith("Rank 2 failed with ValueError: of the user")


def test_who_leaves_with_exit_code_0_leaves_no_stopped_one(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process that stays would have no peer left to end it."""
    leaver, stopped = members[0], members[2]
    leaver.timeout_seconds = LIMIT_SECONDS
    error = SystemExit(0)
    leaver.note_failure(error)
    leaver.wait_for_answers(error)
    stopped._required()._listeners.clear()
    leaver.wait_for_answers(SystemExit(3))
    store = leaver._required()

    def wait(condition: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """The time is over as soon as rank 1 has answered."""
        [question] = store.read(keys.QUESTION).values()
        assert KeyValueStore.wait(store, lambda: 1 in store.read(keys.answer_to(question)), LIMIT_SECONDS)
        return condition()

    monkeypatch.setattr(store, "wait", wait)
    with pytest.raises(
        DistributedError, match=r"Rank 0 called sys.exit\(0\) .*\. Rank 2 does not answer: stopped"
    ) as caught:
        leaver.wait_for_answers(error)
    assert caught.value.__cause__ is error
    monkeypatch.undo()
    stopped.leave()
    assert waited(leaver._required(), lambda store: store.left())
    leaver.wait_for_answers(error)


def test_the_board_forgets_what_all_have_read(members: list[Member]) -> None:
    def exchanges(each: Member) -> list[list[str]]:
        return [each.exchange(f"number {number}", f"{number} of {each.rank}") for number in range(20)]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(exchanges, members))
    for answers in results:
        assert answers == [[f"{number} of {rank}" for rank in range(3)] for number in range(20)]
    for each in members:
        assert len(each._required()._posted) < 6
