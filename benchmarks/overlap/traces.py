"""Reads TensorFlow's profile and Horovod's timeline as intervals of one clock."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from overlap.intervals import Interval

_STEP = "__inference_multi_step_on_iterator"
# TensorFlow's name of an op in its profile is "name of the node:type of the op".
_REDUCTIONS = ("CollectiveReduceV2", "CollectiveGatherV2")
_LATER_OF_GROUP = re.compile(r"_(?!1of)\d+of\d+$")
_NANOSECONDS_PER_MILLISECOND = 1e6


def tensorflow_profile(folder: Path) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Returns steps, backward ops and collectives in the profile of one process, in milliseconds since the epoch."""
    [file] = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    whole, backward, reductions = [], [], []
    # Times of events are relative to the start of the profile.
    [started] = [
        stat.uint64_value
        for plane in space.planes
        for stat in plane.stats
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time"
    ]
    for plane in space.planes:
        if not plane.name.endswith("CPU"):
            continue
        names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name, _, op = names[event.metadata_id].rpartition(":")
                start = (started + line.timestamp_ns + event.offset_ps / 1e3) / _NANOSECONDS_PER_MILLISECOND
                interval = Interval(start, start + event.duration_ps / 1e9)
                if op.strip().startswith(_STEP):
                    whole.append(interval)
                elif name and op in _REDUCTIONS:
                    reductions.append(interval)
                elif name and ("Backprop" in op or op.endswith(("Grad", "GradV3"))):
                    backward.append(interval)
    return whole, backward, reductions


def horovod_timeline(file: Path) -> list[Interval]:
    """Returns the all-reduces in Horovod's timeline, from start of negotiation to end, in milliseconds since the epoch.

    Of tensors that are fused into one all-reduce, only the first one is returned.
    """
    # Horovod writes the closing bracket of the list only when it ends.
    text = file.read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    began = 0.0
    names: dict[int, str] = {}
    open_parts: dict[int, list[str]] = {}
    asked: dict[int, float] = {}
    found = []
    for event in events:
        tensor, at = event["pid"], began + event.get("ts", 0) / 1e3
        match event["ph"]:
            case "M":
                began = event["args"].get("start_time_since_epoch_in_micros", began * 1e3) / 1e3
                names[tensor] = event["args"].get("name", names.get(tensor, ""))
            case "B":
                open_parts.setdefault(tensor, []).append(event["name"])
                if event["name"].startswith("NEGOTIATE"):
                    asked[tensor] = at
            case "E" if open_parts.get(tensor):
                whole = open_parts[tensor].pop() == "ALLREDUCE"
                if whole and tensor in asked and not _LATER_OF_GROUP.search(names[tensor]):
                    found.append(Interval(asked.pop(tensor), at))
    return found
