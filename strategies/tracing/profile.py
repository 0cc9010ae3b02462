"""Profiles of this process by TensorFlow's profiler, as operations of one clock."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from strategies.tracing.events import INPUT, Operation

# An operation's name in a profile is "name of the node:type of the operation". "EagerLocalExecute: name", with a space,
# is a call of a whole function.
_OPERATION = re.compile(r"^([A-Za-z0-9.][\w./>-]*):(\w+)$")
_GPU = re.compile(r"^/device:(GPU:\d+)")
_INPUT = re.compile(r"^(?:Multi)?(?:Device)?IteratorGetNext\w*::DoCompute$")
_STARTED, _DONE = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"


_OPTIONS = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0, device_tracer_level=1)


class Profile:
    """A profile that runs from when it is made until it is read, or dropped, as when the training raises an error.

    Raises:
        tf.errors.OpError: another profile is running in this process.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="strategies_trace_")
        try:
            tf.profiler.experimental.start(self._folder, _OPTIONS)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._drop = weakref.finalize(self, _stop, self._folder)

    def drop(self) -> None:
        """Ends the profile, and writes nothing."""
        self._drop()

    def operations(self) -> list[Operation]:
        """Ends the profile, and returns its operations, by the wall clock (``time.time_ns()``).

        Raises:
            tf.errors.OpError, ValueError: the profile could not be written, or has an unknown form.
        """
        self._drop.detach()
        try:
            tf.profiler.experimental.stop()
            return read(Path(self._folder))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _stop(folder: str) -> None:
    with contextlib.suppress(tf.errors.OpError):
        tf.profiler.experimental.stop(save=False)
    shutil.rmtree(folder, ignore_errors=True)


def read(folder: Path) -> list[Operation]:
    """Returns the operations in the profile of this process, by its wall clock (``time.time_ns()``).

    Args:
        folder: the folder that was given to the profiler; one profile was written to it.
    """
    [file] = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    # Times of events are relative to the start of the profile.
    [started] = [
        stat.uint64_value
        for plane in space.planes
        for stat in plane.stats
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time"
    ]
    found: list[Operation] = []
    for plane in space.planes:
        gpu = _GPU.match(plane.name)
        if gpu:
            found += _of_gpu(plane, started, gpu[1])
        elif plane.name.endswith("CPU"):
            found += _of_host(plane, started)
    return found


def _of_host(plane: Any, started: int) -> Iterator[Operation]:
    names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
    operations = {key: match for key, name in names.items() if (match := _OPERATION.match(name))}
    inputs = {key for key, name in names.items() if _INPUT.match(name)}
    ends = {key: name == _DONE for key, name in names.items() if name in (_STARTED, _DONE)}
    # Operations that do not hold their thread: by name and step, when they began and ended.
    begun: dict[tuple[str, int], list[int]] = defaultdict(list)
    ended: dict[tuple[str, int], list[int]] = defaultdict(list)
    kinds: dict[tuple[str, int], str] = {}
    last = 0
    for line in plane.lines:
        for event in line.events:
            key = event.metadata_id
            begin = started + line.timestamp_ns + event.offset_ps // 1000
            last = max(last, begin + event.duration_ps // 1000)
            if key in operations:
                name, kind = operations[key].group(1, 2)
                yield Operation(name, kind, begin, begin + event.duration_ps // 1000)
            elif key in inputs:
                yield Operation(names[key], INPUT, begin, begin + event.duration_ps // 1000)
            elif key in ends:
                stats = _stats(plane, event)
                number = (stats.get("name", ""), stats.get("step_id", 0))
                kinds[number] = stats.get("kernel_type", "")
                (ended if ends[key] else begun)[number].append(begin)
    for number, times in begun.items():
        # Their order is that of threads, not of time. The profiler may stop before a thread has recorded an end, though
        # the step is done. Such a call ends when what follows it begins.
        missing = [last] * (len(times) - len(ended[number]))
        for begin, end in zip(sorted(times), [*sorted(ended[number]), *missing], strict=False):
            yield Operation(number[0], kinds[number], begin, max(begin, end), is_call=True)


def _of_gpu(plane: Any, started: int, device: str) -> Iterator[Operation]:
    """Yields the kernels of a GPU, by the operations that launched them. Not measured on GPUs."""
    for line in plane.lines:
        for event in line.events:
            match = _OPERATION.match(str(_stats(plane, event).get("tf_op", "")))
            if match:
                begin = started + line.timestamp_ns + event.offset_ps // 1000
                end = begin + event.duration_ps // 1000
                yield Operation(match[1], match[2], begin, end, device=device)


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    found = {}
    metadata = plane.event_metadata[event.metadata_id].stats
    for stat in (*metadata, *event.stats):
        kind = stat.WhichOneof("value")
        value = (
            plane.stat_metadata[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind or "int64_value")
        )
        found[plane.stat_metadata[stat.metadata_id].name] = value
    return found
