"""The collectives for which processes wait, and the check whether these can complete. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

#: The kind of an operation that may start long before its result is needed, while the process computes.
RECEIVE = "receive"


@dataclass(frozen=True)
class Wait:
    """A collective for which a process waits.

    Attributes:
        key: identifies the collective; the same on all its members.
        members: the ranks that take part.
        kind: "all_reduce" or the like.
        what: a description of its data.
        form: everything else that must be the same on all members, such as dtype and number of elements; empty if it is
            not known.
    """

    key: str
    members: tuple[int, ...]
    kind: str
    what: str = ""
    form: str = ""

    def __str__(self) -> str:
        form = f" ({self.form})" if self.form and self.form != self.what else ""
        return f"the {self.kind}{f' of {self.what}' if self.what else ''}{form}"


def to_text(waits: Sequence[Wait]) -> str:
    """Returns waits as text for :func:`from_text`."""
    return json.dumps([asdict(wait) for wait in waits])


def from_text(text: str) -> list[Wait]:
    """Returns the waits that :func:`to_text` has written."""
    return [Wait(**{**fields, "members": tuple(fields["members"])}) for fields in json.loads(text or "[]")]


def can_go_on(waits: Mapping[int, Sequence[Wait]], world_size: int) -> bool:
    """True unless every process waits and none of the collectives that they wait for has all of its members.

    A process that waits for receives only may be computing what another waits for.

    Args:
        waits: the collectives that each process waits for, by rank; a rank that waits for none may be missing.
    """
    if any(all(wait.kind == RECEIVE for wait in waits.get(rank, ())) for rank in range(world_size)):
        return True
    for own in waits.values():
        for wait in own:
            if all(_meets(wait, waits.get(member, ())) for member in wait.members):
                return True
    return False


def lack_members(waits: Mapping[int, Sequence[Wait]], left: Collection[int]) -> dict[int, Wait]:
    """Returns, by rank, a collective that cannot complete since one of its members has left."""
    found = {}
    for rank, own in waits.items():
        gone = [wait for wait in own if set(wait.members) & set(left)]
        if gone:
            found[rank] = gone[0]
    return found


def _meets(wait: Wait, others: Sequence[Wait]) -> bool:
    return any(each.key == wait.key and (each.form == wait.form or not (each.form and wait.form)) for each in others)
