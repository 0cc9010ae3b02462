"""Copies, and gaps between kernels, from TensorFlow's profile of an epoch."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import tensorflow as tf

from tests.gpu.setting import Setting
from tests.gpu.training import Trained


def profiled(trained: Trained, setting: Setting) -> str:
    """Trains an epoch under the profiler and describes it."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        trained.epoch()
        tf.profiler.experimental.stop()
        files = list(Path(folder).glob("plugins/profile/*/*.xplane.pb"))
        if not files:
            return "the profiler left no file"
        # Part of TensorFlow's wheel, without a public name.
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        space = xplane_pb2.XSpace.FromString(files[0].read_bytes())
    wanted = "CPU" if setting.small else "GPU:0"
    return describe(space, wanted, trained.problem.num_steps)


def describe(space: tf.Module, device: str, num_steps: int) -> str:
    """Copies per step by kind, and the share of time in which no stream of the device runs anything."""
    copies: Counter[str] = Counter()
    busy: list[tuple[float, float]] = []
    for plane in space.planes:
        if not plane.name.endswith(device):
            continue
        names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            if "GPU" in device and not line.name.startswith("Stream"):
                continue  # What the profiler derives from the streams.
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
    """The part of the time from the first event to the last in which none runs."""
    ordered = sorted(busy)
    covered, reached = 0.0, ordered[0][0]
    for begin, end in ordered:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    whole = reached - ordered[0][0]
    return 1.0 - covered / whole if whole else 0.0
