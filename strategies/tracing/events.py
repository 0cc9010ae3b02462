"""The recorded events of one rank, as values and as text. Pure.

All times are whole nanoseconds: sums and comparisons of them are exact.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

_VERSION = 1

#: The tracks that every rank has, in the order in which viewers show them.
STEPS, INPUT, COMPUTING, COLLECTIVES = "steps", "input", "computing", "collectives"


@dataclass(frozen=True)
class Operation:
    """One run of an operation of TensorFlow, in a profile.

    Attributes:
        name: the name of the node in its graph.
        kind: the type of the operation, such as "MatMul".
        begin: when it began.
        end: when it ended.
        is_call: True for a call of a function in the graph, whose own operations are recorded, too.
        device: the GPU on which it ran, as in "GPU:0"; empty if it ran, or was launched, on a CPU.
    """

    name: str
    kind: str
    begin: int
    end: int
    is_call: bool = False
    device: str = ""


@dataclass(frozen=True)
class Slice:
    """Something that took time on one rank.

    Attributes:
        track: the track of the rank on which viewers show it.
        name: its name.
        begin: when it began.
        end: when it ended.
        details: more about it, for viewers.
        key: for a collective, the same on all its members, and different for each run; else empty.
        members: for a collective, the ranks that take part.
        idle: for a collective, the part of its time in which the rank computed nothing.
    """

    track: str
    name: str
    begin: int
    end: int
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    key: str = ""
    members: tuple[int, ...] = ()
    idle: int = 0

    def shifted(self, offset: int) -> Slice:
        """Returns the slice with `offset` added to its times."""
        return replace(self, begin=self.begin + offset, end=self.end + offset)


@dataclass(frozen=True)
class Shares:
    """The parts of a rank's recorded time; their sum is the whole.

    Attributes:
        whole: the recorded time.
        computing: time in which an operation of the program ran.
        collectives: time in collectives in which nothing was computed.
        input: time of waiting for the next batch in which nothing was computed and no collective ran.
    """

    whole: int
    computing: int
    collectives: int
    input: int

    @property
    def other(self) -> int:
        """The rest: callbacks, logs, Python."""
        return self.whole - self.computing - self.collectives - self.input


@dataclass(frozen=True)
class RankRecord:
    """The events that one rank has recorded.

    Attributes:
        rank: the rank.
        world_size: the number of ranks.
        host: the name of its host.
        devices: its devices.
        slices: the events, by its own clock; by that of rank 0 once `alignment` has moved them.
        shares: the parts of its time.
        clock: identifies its clock; processes of one host have the same one.
        wall: the time of day, since the epoch, minus the time of its clock.
        measured: what to add to its clock to get that of rank 0, and the error, if barriers have measured it.
        offset: what has been added to its times.
        clock_error: the largest error of its times.
        num_dropped: the number of events that were left out because there were too many.
        notes: sentences about what could not be recorded.
    """

    rank: int
    world_size: int
    host: str
    devices: tuple[str, ...]
    slices: tuple[Slice, ...]
    shares: Shares
    clock: str = ""
    wall: int = 0
    measured: tuple[int, int] | None = None
    offset: int = 0
    clock_error: int = 0
    num_dropped: int = 0
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Returns the record as one line of JSON, for :meth:`from_text`."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        slices = [list(_without_defaults(each)) for each in self.slices]
        fields |= {"version": _VERSION, "slices": slices, "shares": asdict(self.shares)}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> RankRecord:
        """Returns the record that :meth:`to_text` has written.

        Raises:
            ValueError: another version of this package wrote it.
        """
        fields: dict[str, Any] = json.loads(text)
        version = fields.pop("version", None)
        if version != _VERSION:
            raise ValueError(
                f"The record of a rank has version {version!r}, this package reads version {_VERSION}: run the same "
                f"version of strategies on all ranks. Received: {text[:80]!r}."
            )
        slices = tuple(_slice(*each) for each in fields.pop("slices"))
        shares, measured = Shares(**fields.pop("shares")), fields.pop("measured")
        devices, notes = tuple(fields.pop("devices")), tuple(fields.pop("notes"))
        return cls(
            slices=slices,
            shares=shares,
            measured=tuple(measured) if measured else None,
            devices=devices,
            notes=notes,
            **fields,
        )


def _without_defaults(each: Slice) -> Iterator[Any]:
    """Yields the fields of a slice, as far as they differ from their defaults: most slices are times of computing."""
    yield from (each.track, each.name, each.begin, each.end)
    if each.details or each.key:
        yield dict(each.details)
    if each.key:
        yield from (each.key, each.members, each.idle)


def _slice(
    track: str, name: str, begin: int, end: int, details: Any = None, key: str = "", members: Any = (), idle: int = 0
) -> Slice:
    return Slice(track, name, begin, end, details or {}, key, tuple(members), idle)


def limited(slices: Sequence[Slice], at_most: int) -> tuple[tuple[Slice, ...], int]:
    """Returns at most n slices, in the order in which they began, and the number of those left out.

    The shortest times of computing are left out first, since there are most of them.
    """
    if len(slices) > at_most:
        by_weight = sorted(slices, key=lambda each: (each.track.endswith(COMPUTING), each.begin - each.end))
        kept = by_weight[:at_most]
    else:
        kept = list(slices)
    return tuple(sorted(kept, key=lambda each: (each.begin, -each.end))), len(slices) - len(kept)
