"""Timelines of a pipeline's actions on its devices, planned or measured: the bubble, a picture and a trace.

Pure: the caller measures and passes the times.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strategies.schedules import Action, Kind, Schedule, validate
from strategies.svg_chart import IDLE, Box, chart, shades
from strategies.text_table import text_table

#: Blue, orange and green, which colour-blind people can tell apart; blue is also darker than the others.
COLOURS = {
    Kind.FORWARD: "#0072b2",
    Kind.BACKWARD: "#e69f00",
    Kind.BACKWARD_INPUT: "#e69f00",
    Kind.BACKWARD_WEIGHT: "#009e73",
}
NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward of inputs",
    Kind.BACKWARD_WEIGHT: "backward of weights",
}


@dataclass(frozen=True)
class Timeline:
    """The start and end of each action of a schedule. Prints as a few lines of text.

    Attributes:
        schedule: the actions of the devices; its messages are left out.
        device_names: one name for each device of the schedule.
        times: start and end of each forward and backward action, in seconds from the beginning of the step if
            measured, else in ticks.
        measured: True if the times were measured, False if they are planned by the schedule.
        clock_error: the largest error, in seconds, of other processes' times after conversion to rank 0's clock.

    Example:

        layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
        model = keras_ext.PipelineModel(layers, num_stages=2, partition="uniform", num_microbatches=4)
        timeline = model.pipeline_timeline()
        print(timeline)
        timeline.write("timeline.svg")

    Raises:
        ValueError: the schedule does not compute a pipeline, or `device_names` or `times` do not match the schedule.
    """

    schedule: Schedule
    device_names: tuple[str, ...]
    times: Mapping[Action, tuple[float, float]] = field(repr=False)
    measured: bool
    clock_error: float = 0.0

    def __post_init__(self) -> None:
        if len(self.device_names) != self.schedule.num_devices:
            raise ValueError(
                f"device_names must hold one name for each of the {self.schedule.num_devices} devices of the schedule. "
                f"Received: device_names={self.device_names!r}."
            )
        validate(self.schedule)
        expected = set(_computations(self.schedule))
        if not expected:
            raise ValueError(f"A schedule without computations has no timeline. Received: schedule={self.schedule!r}.")
        for actions, what in (
            ([action for action in expected if action not in self.times], "no times of"),
            ([action for action in self.times if action not in expected], "times of what it does not compute:"),
        ):
            if actions:
                raise ValueError(
                    "times must hold the start and end of each forward and backward action of the schedule, and "
                    f"nothing else. Received: {what} {_listed(actions)}."
                )
        for action, (start, end) in self.times.items():
            if not (math.isfinite(start) and math.isfinite(end) and start <= end):
                raise ValueError(
                    "times must be pairs of a start and an end that is not before it. "
                    f"Received: {(start, end)!r} for {action}."
                )

    @classmethod
    def planned(cls, schedule: Schedule, ticks: Callable[[Action], float] | None = None) -> Timeline:
        """Returns the planned timeline of a schedule: each action starts as soon as it can.

        Args:
            schedule: a schedule with or without messages.
            ticks: returns the duration of an action; if left out, a backward action is twice as long as a forward one.
        """
        times = schedule.times(ticks)
        names = tuple(f"device {k}" for k in range(schedule.num_devices))
        return cls(schedule, names, {action: times[action] for action in _computations(schedule)}, measured=False)

    @property
    def length(self) -> float:
        """The time from the first start to the last end, in seconds if measured, else in ticks."""
        return max(end for _, end in self.times.values()) - min(start for start, _ in self.times.values())

    @property
    def bubble(self) -> float:
        """The share of the devices' time, from the first start to the last end, in which they wait."""
        return 1 - statistics.fmean(self._busy(k) for k in range(self.schedule.num_devices))

    @property
    def planned_bubble(self) -> float:
        """The bubble of the schedule if all forward passes were equally long and backward passes twice as long."""
        return self.schedule.bubble()

    def svg(self) -> str:
        """Returns an SVG picture: devices down, time to the right, one box per action with its micro-batch's number.

        With several stages on a device, later stages have lighter colours.
        """
        num_chunks = -(-self.schedule.num_stages // self.schedule.num_devices)
        colours = {kind: shades(colour, num_chunks) for kind, colour in COLOURS.items()}
        scale = 1000 if self.measured else 1
        boxes = []
        for action in _computations(self.schedule):
            start, end = self.times[action]
            tooltip = (
                f"{action}: stage {action.stage}, {NAMES[action.kind]}, micro-batch {action.microbatch}; "
                f"starts at {self._written(start)}, takes {self._written(end - start)}"
            )
            colour = colours[action.kind][action.stage // self.schedule.num_devices]
            lane = self.schedule.device_of(action.stage)
            boxes.append(Box(lane, start * scale, end * scale, str(action.microbatch), tooltip, colour))
        meanings = [self._stages_at(chunk) if num_chunks > 1 else "" for chunk in range(num_chunks)]
        legend = [
            [(colour, NAMES[kind] + meaning) for colour, meaning in zip(colours[kind], meanings, strict=True)]
            for kind in self.schedule.kinds
        ]
        waiting = "waiting"
        if self.clock_error:
            waiting += f"; clocks of processes aligned to {self._written(self.clock_error)}"
        axis = "time since the step began (ms)" if self.measured else "time (ticks)"
        return chart(self._title, self._bubbles, self.device_names, boxes, [*legend, [(IDLE, waiting)]], axis)

    def _repr_svg_(self) -> str:
        """Returns the picture; Jupyter draws a value by this name."""
        return self.svg()

    def chrome_trace(self) -> dict[str, Any]:
        """Returns the events for Chrome's ``about:tracing`` and Perfetto; a planned tick is shown as a millisecond."""
        events: list[dict[str, Any]] = [_metadata("process_name", 0, {"name": self._title})]
        for k, name in enumerate(self.device_names):
            events.append(_metadata("thread_name", k, {"name": name}))
            events.append(_metadata("thread_sort_index", k, {"sort_index": k}))
        microseconds = 1e6 if self.measured else 1e3
        for action in _computations(self.schedule):
            # Viewers round to nanoseconds. Rounding here ensures that no action ends after the next one starts.
            start, end = (round(time * microseconds, 3) for time in self.times[action])
            events.append(
                {
                    "name": f"{action.kind.value}{action.microbatch}",
                    "cat": NAMES[action.kind],
                    "ph": "X",
                    "ts": start,
                    "dur": round(end - start, 3),
                    "pid": 0,
                    "tid": self.schedule.device_of(action.stage),
                    "args": {"stage": action.stage, "microbatch": action.microbatch},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def write(self, path: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Writes the picture, and beside it the trace with the suffix ``.json``; creates missing folders.

        Returns:
            The paths of the picture and of the trace.

        Raises:
            ValueError: the path does not end in ``.svg``.
        """
        picture = picture_path(path)
        trace = picture.with_suffix(".json")
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(self.svg(), encoding="utf-8")
        trace.write_text(json.dumps(self.chrome_trace()), encoding="utf-8")
        return picture, trace

    def __str__(self) -> str:
        kinds = self.schedule.kinds
        rows = [("", "busy", *(f"mean {NAMES[kind]}" for kind in kinds))]
        for k, name in enumerate(self.device_names):
            rows.append((name, f"{self._busy(k):.1%}", *(self._mean(k, kind) for kind in kinds)))
        return "\n".join([f"{self._title}; length: {self._written(self.length)}", self._bubbles, *text_table(rows)])

    @property
    def _title(self) -> str:
        name, stages, microbatches = self.schedule.name, self.schedule.num_stages, self.schedule.num_microbatches
        return f"{name}: {stages} stage{_s(stages)}, {microbatches} micro-batch{'es' if microbatches != 1 else ''}"

    @property
    def _bubbles(self) -> str:
        if not self.measured:
            return f"bubble: by the schedule {100 * self.bubble:.1f} %"
        return f"bubble: measured {100 * self.bubble:.1f} %, by the schedule {100 * self.planned_bubble:.1f} %"

    def _times_on(self, device: int) -> dict[Action, tuple[float, float]]:
        return {a: times for a, times in self.times.items() if self.schedule.device_of(a.stage) == device}

    def _busy(self, device: int) -> float:
        """Returns the share of the length in which a device computes; overlapping times count once."""
        busy, until = 0.0, -math.inf
        for start, end in sorted(self._times_on(device).values()):
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return busy / self.length if self.length else 1.0

    def _mean(self, device: int, kind: Kind) -> str:
        lengths = [end - start for action, (start, end) in self._times_on(device).items() if action.kind is kind]
        return self._written(statistics.fmean(lengths)) if lengths else "none"

    def _written(self, time: float) -> str:
        return f"{1000 * time:.3f} ms" if self.measured else f"{time:g} tick{_s(time)}"

    def _stages_at(self, chunk: int) -> str:
        """Returns the legend's text for the stages that are at position `chunk` on their devices."""
        first = chunk * self.schedule.num_devices
        last = min(first + self.schedule.num_devices, self.schedule.num_stages) - 1
        return f", stage {first}" if first == last else f", stages {first} to {last}"


def picture_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a picture as a `Path`.

    Raises:
        ValueError: the path does not end in ``.svg``.
    """
    picture = Path(path)
    if picture.suffix != ".svg":
        raise ValueError(
            "The picture of a timeline is an SVG file: give a path that ends in .svg, such as 'timeline.svg'. "
            f"Received: path={os.fspath(path)!r}."
        )
    return picture


def _computations(schedule: Schedule) -> list[Action]:
    return [action for actions in schedule.devices for action in actions if action.kind in COLOURS]


def _metadata(name: str, device: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": 0, "tid": device, "args": arguments}


def _listed(actions: Iterable[Action]) -> str:
    ordered = sorted(actions, key=lambda action: (action.stage, action.kind.value, action.microbatch))
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return ", ".join(map(str, ordered[:5])) + more


def _s(number: float) -> str:
    return "" if number == 1 else "s"
