"""Finds collectives, stages' passes, input and computing among the operations of a profile. Pure."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.op_names import names
from strategies.op_names.names import StagePass
from strategies.tracing.events import COLLECTIVES, COMPUTING, INPUT, Operation, Slice
from strategies.tracing.intervals import Interval, length, union

# Times of computing that are no further apart are drawn as one.
_NEAR = 20_000
# The largest share of a pass that may run before a pause and not count as its beginning: reads of its weights.
_EARLY_SHARE = 0.1
_NOT_COMPUTING = re.compile(r"_Send|_Recv|_HostSend|_HostRecv|Collective|Horovod|Iterator|.*IteratorGetNext|NoOp")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_REPLICA = re.compile(r"(?:^|/)replica_(\d+)(?:_\d+)?/")


@dataclass(frozen=True)
class Collective:
    """A collective that the operations of a profile may show.

    Attributes:
        key: the same on all its members.
        kind: "all_reduce" or the like.
        what: a description of its data.
        members: the ranks that take part.
        axis: the mesh axis along which they lie; empty if they are of no one axis.
        num_bytes: the size of what this rank sends, or receives; None if it is not known.
        device: its device, as in "CPU:0".
        num_before: how often it had started before the profile.
    """

    key: str
    kind: str
    what: str
    members: tuple[int, ...]
    axis: str
    num_bytes: int | None
    device: str
    num_before: int

    def run(self, index: int, begin: int, end: int) -> Slice:
        """Returns the slice of a run; `index` counts the runs in the profile."""
        number = self.num_before + index
        known = {"what": self.what, "axis": self.axis, "bytes": self.num_bytes, "device": self.device}
        details = {name: value for name, value in known.items() if value not in ("", None)}
        name = f"{self.kind} of {self.what}" if self.what else self.kind
        members = tuple(dict.fromkeys(self.members))
        return Slice(
            COLLECTIVES,
            name,
            begin,
            end,
            {**details, "collective": self.key, "run": number},
            f"{self.key}#{number}",
            members,
        )


def collectives(
    operations: Iterable[Operation], known: Mapping[tuple[int, int], Collective]
) -> tuple[list[Slice], int]:
    """Returns the runs of collectives between processes, and the number of those without a recorded end.

    A collective begins when its input is ready, and ends when its result is.

    Args:
        operations: those of the profile.
        known: collectives by the numbers of their ledger and entry.
    """
    starts: dict[tuple[int, int], list[int]] = defaultdict(list)
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in operations:
        found = names.find_counted(each.name)
        if found is not None and found[:2] in known:
            on_gpu = known[found[:2]].device.startswith("GPU")
            if on_gpu == bool(each.device):
                (ends if found[2] else starts)[found[:2]].append(each.begin if found[2] else each.end)
    runs, num_open = [], 0
    for number, begins in starts.items():
        begins.sort()
        # A run that ended before the first start had begun before the profile.
        left = sorted(end for end in ends[number] if end >= begins[0])
        num_open += len(begins) - len(left)
        runs += [known[number].run(i, begin, end) for i, (begin, end) in enumerate(zip(begins, left, strict=False))]
    return runs, num_open


def collectives_in_process(operations: Iterable[Operation]) -> list[Slice]:
    """Returns the times of collectives between devices of this process, which are plain operations."""
    by_kind: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for each in operations:
        found = names.find_in_process(each.name)
        if found is not None and not each.is_call:
            by_kind[found].append((each.begin, each.end))
    return [
        Slice(COLLECTIVES, kind, begin, end, {"axis": axis, "between": "devices of this process"})
        for (kind, axis), found in by_kind.items()
        for begin, end in _joined(found)
    ]


def passes(operations: Iterable[Operation], windows: Sequence[Slice]) -> list[Slice]:
    """Returns the passes of pipeline stages; those of one stage and replica do not overlap.

    Args:
        operations: those of the profile.
        windows: the executions of one or more steps; each has the number of its steps among its details.
    """
    calls: list[tuple[str, StagePass, Interval]] = []
    in_line: dict[str, list[_Part]] = defaultdict(list)
    named = [(each, found) for each in operations if (found := names.find_pass(each.name)) is not None]
    # TensorFlow's names do not say which half of a backward pass an operation in line belongs to.
    in_halves = {found.stage for _, found in named if found.kind == "I"}
    for each, found in named:
        if found.kind == "B" and found.stage in in_halves:
            found = replace(found, kind="I")
        track = _of_replica(each.name, f"stage {found.stage}")
        if each.is_call and each.kind in _CALLS:
            calls.append((track, found, (each.begin, each.end)))
        elif not each.is_call and not _NOT_COMPUTING.match(each.kind):
            in_line[track].append(_Part(each.begin, each.end, found))
    # A stage that is called has but a few operations in line, such as those of the loss.
    called = {(track, found.stage, found.microbatch) for track, found, _ in calls}
    parts = [*calls]
    for track, own in in_line.items():
        left = [each for each in own if (track, each.stage_pass.stage, each.stage_pass.microbatch) not in called]
        parts += [(track, each.stage_pass, (each.begin, each.end)) for each in _in_line_passes(left, windows)]
    slices = [
        Slice(track, str(found), begin, end, {"stage": found.stage, "micro-batch": found.microbatch})
        for track, found, (begin, end) in parts
    ]
    return _apart(slices)


@dataclass(frozen=True)
class _Part:
    """Operations of one pass that ran one after the other."""

    begin: int
    end: int
    stage_pass: StagePass


def _in_line_passes(operations: Iterable[_Part], windows: Sequence[Slice]) -> list[_Part]:
    """Returns the passes of one stage from their operations.

    Operations without inputs, such as reads of variables, may run long before their pass, and the runtime may mix the
    last operations of a pass with the first of the next. So a pass is the longest run of its operations in each step.
    """
    ordered = sorted(operations, key=lambda each: each.begin)
    found = []
    for window in windows:
        own = [each for each in ordered if window.begin <= each.begin < window.end]
        by_pass: dict[StagePass, list[tuple[int, _Part]]] = defaultdict(list)
        for stage_pass, group in itertools.groupby(own, key=lambda each: each.stage_pass):
            run = _without_early(list(group))
            busy = length((each.begin, each.end) for each in run)
            by_pass[stage_pass].append((busy, _Part(run[0].begin, max(each.end for each in run), stage_pass)))
        count = int(window.details.get("count", 1))
        for runs in by_pass.values():
            found += [part for _, part in sorted(runs, key=lambda each: -each[0])[:count]]
    return found


def _without_early(run: list[_Part]) -> list[_Part]:
    """Returns the operations of a run without a few at its beginning that ran long before the others."""
    total, seen, end = length((each.begin, each.end) for each in run), 0, run[0].end
    first = 0
    for index, each in enumerate(run):
        if each.begin - end > _NEAR and seen < _EARLY_SHARE * total:
            first = index
        seen += max(0, each.end - max(each.begin, end)) if index else each.end - each.begin
        end = max(end, each.end)
    return run[first:]


def _apart(slices: Iterable[Slice]) -> list[Slice]:
    """Returns slices without overlaps in a track: each ends at the latest when the next begins."""
    by_track: dict[str, list[Slice]] = defaultdict(list)
    for each in sorted(slices, key=lambda each: (each.begin, each.end)):
        by_track[each.track].append(each)
    return [
        Slice(own.track, own.name, own.begin, min(own.end, following), own.details)
        for track in by_track.values()
        for own, following in zip(track, [*(each.begin for each in track[1:]), track[-1].end], strict=True)
    ]


def inputs(operations: Iterable[Operation]) -> list[Slice]:
    """Returns the times in which a step waits for its next batch, or draws it."""
    found = [(each.begin, each.end) for each in operations if each.kind == INPUT]
    return [Slice(INPUT, "next batch", begin, end) for begin, end in union(found)]


def computing(
    operations: Iterable[Operation], optimizer_names: Collection[str] = ()
) -> tuple[list[Slice], list[Interval]]:
    """Returns the times in which operations of the program run, by replica and phase, and their intervals.

    If there are GPUs, their operations count, and the CPU's, which launches them, do not.

    Args:
        operations: those of the profile.
        optimizer_names: the names of the model's optimizers, in whose scopes Keras makes their operations.
    """
    own = [each for each in operations if _computes(each)]
    on_gpus = [each for each in own if each.device]
    by_track: dict[str, list[Operation]] = defaultdict(list)
    for each in on_gpus or own:
        track = _of_replica(each.name, COMPUTING)
        by_track[f"{each.device} {track}" if each.device else track].append(each)
    scopes = "|".join([r"update_\d+", *map(re.escape, optimizer_names)])
    updates = re.compile(rf"(?:^|/)(?:{scopes})(?:_\d+)?/")
    slices = [each for track, found in by_track.items() for each in _phases(track, found, updates)]
    return slices, union((each.begin, each.end) for each in on_gpus or own)


def _computes(each: Operation) -> bool:
    is_mark = names.find_counted(each.name) or names.find_in_process(each.name)
    return not (each.is_call or is_mark or each.kind == INPUT or _NOT_COMPUTING.match(each.kind))


def _phases(track: str, operations: Iterable[Operation], updates: re.Pattern[str]) -> list[Slice]:
    found: list[Slice] = []
    for each in sorted(operations, key=lambda each: each.begin):
        is_update = updates.search(each.name) is not None
        phase = "update" if is_update else "backward" if "gradient_tape/" in each.name else "forward"
        last = found[-1] if found else None
        if last is not None and last.name == phase and each.begin <= last.end + _NEAR:
            found[-1] = Slice(track, phase, last.begin, max(last.end, each.end))
        else:
            if last is not None and each.begin < last.end:
                found[-1] = Slice(track, last.name, last.begin, each.begin)
            found.append(Slice(track, phase, each.begin, each.end))
    return [each for each in found if each.end > each.begin]


def _of_replica(name: str, track: str) -> str:
    found = _REPLICA.search(name)
    return f"replica {found[1]}, {track}" if found else track


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the union of intervals, with small gaps closed."""
    wide = union((begin, end + _NEAR) for begin, end in intervals)
    return [(begin, end - _NEAR) for begin, end in wide]
