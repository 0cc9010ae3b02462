"""Draws one step of a trace as a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strategies.svg_chart import IDLE, Box, chart
from strategies.tracing.events import COLLECTIVES, COMPUTING, INPUT, STEPS, RankRecord, Slice
from strategies.tracing.lanes import in_lanes

# Blue, orange and green, as in timelines of pipelines, and what is not computing in other colours.
_COLOURS = {"F": "#0072b2", "B": "#e69f00", "I": "#e69f00", "W": "#009e73"}
_PHASES = {"forward": "#0072b2", "backward": "#e69f00", "update": "#009e73"}
_COLLECTIVE, _INPUT = "#cc79a7", "#56b4e9"
_MS = 1e6


def svg(records: Sequence[RankRecord], title: str) -> str:
    """Returns an SVG picture of the last step that all ranks have recorded: their tracks down, time to the right.

    A rank with stages of a pipeline shows their passes, another one its phases.

    Raises:
        ValueError: no step was recorded by all ranks.
    """
    windows = [[each for each in record.slices if each.track == STEPS] for record in records]
    if not all(windows):
        raise ValueError("A picture shows a step of all ranks. Received: a rank without a step.")
    begin = min(steps[-1].begin for steps in windows)
    end = max(steps[-1].end for steps in windows)
    lanes: list[str] = []
    boxes: list[Box] = []
    for record in records:
        for name, own in _lanes(record, begin, end):
            for each in own:
                boxes.append(_box(each, len(lanes), begin, end))
            lanes.append(f"rank {record.rank}: {name}")
    legend = [
        [(_COLOURS["F"], "forward"), (_COLOURS["B"], "backward"), (_COLOURS["W"], "update, or backward of weights")],
        [(_COLLECTIVE, "collective"), (_INPUT, "next batch"), (IDLE, "nothing of these")],
    ]
    caption = f"the last recorded step of {len(records)} rank{'' if len(records) == 1 else 's'}, on one clock"
    return chart(title, caption, lanes, boxes, legend, "time since the step began (ms)")


def _lanes(record: RankRecord, begin: int, end: int) -> Iterator[tuple[str, list[Slice]]]:
    """Yields the names of a rank's lanes in the picture, with the slices that do not overlap."""
    within = [each for each in record.slices if each.begin < end and each.end > begin]
    stages = sorted({each.track for each in within if "stage " in each.track})
    for track in stages or sorted({each.track for each in within if each.track.endswith(COMPUTING)}):
        yield track, [each for each in within if each.track == track]
    for track in (INPUT, COLLECTIVES):
        found: dict[int, list[Slice]] = {}
        for lane, each in in_lanes(each for each in within if each.track == track):
            found.setdefault(lane, []).append(each)
        for lane, own in sorted(found.items()):
            yield track if lane == 0 else f"{track} ({lane + 1})", own


def _box(each: Slice, lane: int, begin: int, end: int) -> Box:
    first, last = max(each.begin, begin), min(each.end, end)
    tooltip = f"{each.name}: {(each.end - each.begin) / _MS:.3f} ms"
    if each.track == COLLECTIVES:
        colour, label = _COLLECTIVE, each.name.partition(" ")[0]
    elif each.track == INPUT:
        colour, label = _INPUT, ""
    elif "micro-batch" in each.details:
        label = str(each.details["micro-batch"])
        colour = _COLOURS[each.name.removeprefix(str(each.details["stage"]))[0]]
    else:
        colour, label = _PHASES[each.name], ""
    return Box(lane, (first - begin) / _MS, (last - begin) / _MS, label, tooltip, colour)
