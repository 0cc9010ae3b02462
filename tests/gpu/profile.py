"""Copies, and gaps between kernels, from TensorFlow's profile of some steps."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tests.gpu.setting import Setting
from tests.gpu.training import Trained


class _Window(keras.callbacks.Callback):
    """Profiles the steps of an epoch from `first` to `last`, exclusive.

    This excludes the beginning of the epoch, with the copies of the whole data and the iterator, and its end. The same
    number of batches is prefetched when the profile begins and when it ends.
    """

    def __init__(self, folder: str, first: int, last: int) -> None:
        super().__init__()
        self._folder, self._first, self._last = folder, first, last

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Between two steps, after the devices have computed all enqueued work.
        if batch + 1 == self._first:
            tf.test.experimental.sync_devices()
            tf.profiler.experimental.start(self._folder)
        elif batch + 1 == self._last:
            tf.test.experimental.sync_devices()
            tf.profiler.experimental.stop()


def profiled(trained: Trained, setting: Setting) -> str:
    """Trains an epoch, profiles steps in the middle of it, and describes the profile."""
    num_steps = trained.problem.num_steps
    with tempfile.TemporaryDirectory() as folder:
        trained.epoch(repeats=4, callbacks=[_Window(folder, first=num_steps, last=3 * num_steps)])
        files = list(Path(folder).glob("plugins/profile/*/*.xplane.pb"))
        if not files:
            return "the profiler left no file"
        # Part of TensorFlow's wheel, without a public name.
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        space = xplane_pb2.XSpace.FromString(files[0].read_bytes())
    wanted = "CPU" if setting.small else "GPU:0"
    return describe(space, wanted, 2 * num_steps)


def describe(space: Any, device: str, num_steps: int) -> str:
    """Describes an `XSpace`: copies per step by kind, and the share of time in which no stream of the device runs."""
    copies: Counter[str] = Counter()
    busy: list[tuple[float, float]] = []
    for plane in space.planes:
        if not plane.name.endswith(device):
            continue
        names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            if "GPU" in device and not line.name.startswith("Stream"):
                continue  # Lines that the profiler derives from the streams.
            for event in line.events:
                name = names[event.metadata_id]
                begin = line.timestamp_ns + event.offset_ps / 1e3
                busy.append((begin, begin + event.duration_ps / 1e3))
                if "memcpy" in name.lower():
                    copies[name.split()[0]] += 1
    if not busy:
        return f"the profile has no events of {device}"
    listed = ", ".join(f"{name} {count / num_steps:.1f}" for name, count in sorted(copies.items())) or "none"
    return f"{len(busy) / num_steps:.0f} events a step; copies a step: {listed}; idle {idle_share(busy):.0%}"


def idle_share(busy: list[tuple[float, float]]) -> float:
    """Returns the fraction of the time from the first event to the last in which none runs."""
    ordered = sorted(busy)
    covered, reached = 0.0, ordered[0][0]
    for begin, end in ordered:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    whole = reached - ordered[0][0]
    return 1.0 - covered / whole if whole else 0.0
