"""Timelines: bubbles by formula and by hand, and the contents of picture and trace."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from keras_ext.pipeline.timeline import Timeline
from strategies.schedules.messages import with_messages
from strategies.schedules.named import gpipe, interleaved, one_forward_one_backward, zero_bubble_h1
from strategies.schedules.schedule import Action, Kind, Schedule

SVG = "{http://www.w3.org/2000/svg}"


def forward(stage: int, microbatch: int) -> Action:
    return Action(stage, Kind.FORWARD, microbatch)


def backward(stage: int, microbatch: int) -> Action:
    return Action(stage, Kind.BACKWARD, microbatch)


# In seconds from the beginning of the step; the passes run from 10 ms to 20 ms. The first device works for 6 ms of it;
# the second for 4 ms, where 1F0 and 1B0 overlap by 1 ms.
MEASURED = {
    forward(0, 0): (0.010, 0.012),
    forward(1, 0): (0.012, 0.015),
    backward(1, 0): (0.014, 0.016),
    backward(0, 0): (0.016, 0.020),
}


def measured(*names: str) -> Timeline:
    return Timeline(gpipe(2, 1), names or ("GPU:0", "GPU:1"), MEASURED, measured=True)


def elements(timeline: Timeline, kind: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(timeline.svg()).iter(f"{SVG}rect") if each.get("class") == kind]


def texts(timeline: Timeline) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(timeline.svg()).iter(f"{SVG}text")]


@pytest.mark.parametrize("make", [gpipe, one_forward_one_backward])
def test_bubble_of_a_plan_is_the_formula(make: Callable[[int, int], Schedule]) -> None:
    for p, m in itertools.product(range(1, 6), range(1, 9)):
        timeline = Timeline.planned(make(p, m))
        assert timeline.bubble == pytest.approx((p - 1) / (m + p - 1))
        assert timeline.planned_bubble == pytest.approx(timeline.bubble)
        assert timeline.length == 3 * (m + p - 1)


def test_a_plan_of_split_backward_passes_has_a_colour_and_a_column_for_each_half() -> None:
    timeline = Timeline.planned(zero_bubble_h1(2, 2))
    assert str(timeline).splitlines()[2].split("  ")[-3:] == [
        "mean forward",
        "mean backward of inputs",
        "mean backward of weights",
    ]
    assert len({each.get("fill") for each in elements(timeline, "box")}) == 3
    assert {"forward", "backward of inputs", "backward of weights"} <= set(texts(timeline))
    assert {event["name"] for event in timeline.chrome_trace()["traceEvents"] if event["ph"] == "X"} == {
        *("F0", "F1", "I0", "I1", "W0", "W1")
    }


def test_plan_leaves_messages_out() -> None:
    schedule = one_forward_one_backward(3, 4)
    timeline = Timeline.planned(with_messages(schedule))
    assert timeline.times == schedule.times()
    assert timeline.device_names == ("device 0", "device 1", "device 2")


def test_plan_with_ticks() -> None:
    timeline = Timeline.planned(gpipe(2, 2), lambda action: 3.0 if action.stage == 1 else 1.0)
    assert timeline.length == 14
    assert timeline.bubble == pytest.approx(12 / 28)
    assert timeline.planned_bubble == pytest.approx(1 / 3)
    assert str(timeline).splitlines()[1] == "bubble: by the schedule 42.9 %"


def test_measured_by_hand() -> None:
    timeline = measured()
    assert timeline.length == pytest.approx(0.010)
    assert timeline.bubble == pytest.approx(0.5)
    assert str(timeline).splitlines() == [
        "gpipe: 2 stages, 1 micro-batch; length: 10.000 ms",
        "bubble: measured 50.0 %, by the schedule 50.0 %",
        "        busy  mean forward  mean backward",
        "GPU:0  60.0%      2.000 ms       4.000 ms",
        "GPU:1  40.0%      3.000 ms       2.000 ms",
    ]


def test_prints_a_plan() -> None:
    lines = str(Timeline.planned(one_forward_one_backward(2, 3))).splitlines()
    assert lines[:2] == ["1f1b: 2 stages, 3 micro-batches; length: 12 ticks", "bubble: by the schedule 25.0 %"]
    assert lines[3] == "device 0  75.0%        1 tick        2 ticks"


@pytest.mark.parametrize(
    ("names", "times", "received"),
    [
        (("a",), MEASURED, r"each of the 2 devices.*\('a',\)"),
        (("a", "b"), dict(list(MEASURED.items())[2:]), "no times of 0F0, 1F0"),
        (("a", "b"), {**MEASURED, forward(2, 0): (0.0, 1.0)}, "does not compute: 2F0"),
        (("a", "b"), {**MEASURED, forward(1, 0): (1.0, 0.5)}, r"\(1.0, 0.5\) for 1F0"),
        (("a", "b"), {**MEASURED, forward(1, 0): (0.0, float("nan"))}, "nan.* for 1F0"),
    ],
)
def test_refuses_what_does_not_belong(
    names: tuple[str, ...], times: dict[Action, tuple[float, float]], received: str
) -> None:
    with pytest.raises(ValueError, match=f"(?s)Received.*{received}|{received}"):
        Timeline(gpipe(2, 1), names, times, measured=True)


def test_names_only_the_first_of_many_actions() -> None:
    with pytest.raises(ValueError, match=r"no times of 0B0, 0B1, 0B2, 0B3, 0F0 and 11 more\."):
        Timeline(gpipe(2, 4), ("a", "b"), {}, measured=False)


def test_refuses_a_schedule_that_cannot_run() -> None:
    half = dataclasses.replace(gpipe(2, 1), devices=((forward(0, 0),), (forward(1, 0),)))
    with pytest.raises(ValueError, match="0B0 is missing"):
        Timeline(half, ("a", "b"), {forward(0, 0): (0, 1), forward(1, 0): (1, 2)}, measured=True)
    with pytest.raises(ValueError, match="without computations"):
        Timeline(Schedule("nothing", 0, 0, ()), (), {}, measured=True)


@pytest.mark.parametrize("schedule", [gpipe(2, 1), one_forward_one_backward(4, 8), interleaved(3, 7, 3)], ids=str)
def test_picture_has_a_box_for_each_action_to_scale(schedule: Schedule) -> None:
    timeline = Timeline.planned(schedule)
    boxes = elements(timeline, "box")
    actions = [action for device in schedule.devices for action in device]
    assert len(boxes) == len(actions)
    idle = elements(timeline, "idle")
    assert len(idle) == schedule.num_devices
    left, per_tick = float(idle[0].attrib["x"]), float(idle[0].attrib["width"]) / timeline.length
    for box, action in zip(boxes, actions, strict=True):
        start, end = timeline.times[action]
        assert float(box.attrib["x"]) == pytest.approx(left + start * per_tick, abs=0.01)
        assert float(box.attrib["width"]) == pytest.approx((end - start) * per_tick, abs=0.01)
        assert box.attrib["y"] == idle[schedule.device_of(action.stage)].attrib["y"]
        assert box[0].tag == f"{SVG}title"
        assert (box[0].text or "").startswith(f"{action}: stage {action.stage}, ")


def test_boxes_of_a_stage_and_kind_have_one_colour_that_the_legend_has() -> None:
    timeline = Timeline.planned(interleaved(2, 4, 3))
    colours: dict[tuple[str, int], str] = {}
    for box in elements(timeline, "box"):
        found = re.match(r"(\d+)([FB])", box[0].text or "")
        assert found
        key = found[2], int(found[1]) // 2
        assert colours.setdefault(key, box.attrib["fill"]) == box.attrib["fill"]
    assert len(set(colours.values())) == 6
    assert {key.get("fill") for key in elements(timeline, "key")} > set(colours.values())
    assert {"forward, stages 0 to 1", "backward, stages 4 to 5", "waiting"} <= set(texts(timeline))


def test_picture_of_what_was_measured() -> None:
    timeline = measured()
    tooltips = [box[0].text for box in elements(timeline, "box")]
    assert tooltips[1] == "0B0: stage 0, backward, micro-batch 0; starts at 16.000 ms, takes 4.000 ms"
    found = texts(timeline)
    assert found[:2] == ["gpipe: 2 stages, 1 micro-batch", "bubble: measured 50.0 %, by the schedule 50.0 %"]
    assert {"GPU:0", "GPU:1", "forward", "backward", "waiting", "10", "12", "20"} <= set(found)


def test_names_are_escaped() -> None:
    names = 'a <b> & "c"', "line\nbreak \x00 \ud800"
    schedule = dataclasses.replace(gpipe(2, 1), name='<i>&"')
    timeline = Timeline(schedule, names, MEASURED, measured=True)
    root = ElementTree.fromstring(timeline.svg())
    assert root.attrib["aria-label"].startswith('<i>&": 2 stages')
    assert names[0] in texts(timeline)
    assert "line\ufffdbreak \ufffd \ufffd" in texts(timeline)
    timeline.svg().encode()


def test_long_name_keeps_its_end_and_is_whole_in_its_tooltip() -> None:
    long = "/job:worker/replica:0/task:1/device:GPU:0"
    shown = [text for text in texts(measured("GPU:0", long)) if "task:1" in text]
    assert len(shown) == 1
    assert shown[0].startswith(f"{long}…")
    assert shown[0].endswith("/device:GPU:0")
    assert len(shown[0]) == len(long) + 40


@pytest.mark.parametrize("seconds", [1e-7, 0.0021, 0.037, 1.4, 86.0, 4000.0])
@pytest.mark.parametrize("offset", [0.0, 12.345])
def test_axis_has_a_few_round_times_and_nothing_is_cut_off(seconds: float, offset: float) -> None:
    planned = Timeline.planned(one_forward_one_backward(4, 8))
    times = {a: tuple(offset + seconds * t / planned.length for t in span) for a, span in planned.times.items()}
    timeline = Timeline(planned.schedule, tuple("abcd"), times, measured=True)  # type: ignore[arg-type]
    root = ElementTree.fromstring(timeline.svg())
    labels = [each for each in root.iter(f"{SVG}text") if re.fullmatch(r"[\d.]+", each.text or "")]
    ticks = [each for each in labels if each.get("font-size") == "16"]
    assert 3 <= len(ticks) <= 10
    assert all(1000 * offset - 1e-5 <= float(each.text or "") <= 1000 * (offset + seconds) + 1e-5 for each in ticks)
    step = float(ticks[1].text or "") - float(ticks[0].text or "")
    assert round(step / 10 ** math.floor(math.log10(step) + 0.01), 2) in (1, 2, 5)
    lefts = [float(each.attrib["x"]) for each in ticks]
    widest = max(len(each.text or "") for each in ticks) * 16 * 0.62
    assert all(b - a > widest for a, b in itertools.pairwise(lefts))
    assert all(float(each.attrib["x"]) + 20 < float(root.attrib["width"]) for each in labels)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (16, 64)])
def test_size_is_sensible(p: int, m: int) -> None:
    root = ElementTree.fromstring(Timeline.planned(interleaved(p, m)).svg())
    assert 600 < float(root.attrib["width"]) < 2000
    assert float(root.attrib["height"]) < 240 + 44 * p


def test_actions_that_take_no_time() -> None:
    timeline = Timeline(gpipe(2, 1), ("a", "b"), dict.fromkeys(MEASURED, (0.5, 0.5)), measured=True)
    assert timeline.bubble == 0
    assert len(elements(timeline, "box")) == 4


def test_trace_of_what_was_measured() -> None:
    trace = measured().chrome_trace()
    named = {(event["name"], event["tid"]): event["args"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert named == {
        ("process_name", 0): {"name": "gpipe: 2 stages, 1 micro-batch"},
        ("thread_name", 0): {"name": "GPU:0"},
        ("thread_name", 1): {"name": "GPU:1"},
        ("thread_sort_index", 0): {"sort_index": 0},
        ("thread_sort_index", 1): {"sort_index": 1},
    }
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["cat"], e["tid"], e["ts"], e["dur"]) for e in events] == [
        ("F0", "forward", 0, 10000, 2000),
        ("B0", "backward", 0, 16000, 4000),
        ("F0", "forward", 1, 12000, 3000),
        ("B0", "backward", 1, 14000, 2000),
    ]
    assert events[2]["args"] == {"stage": 1, "microbatch": 0}
    assert {event["pid"] for event in trace["traceEvents"]} == {0}


def test_trace_of_a_plan_has_a_tick_per_millisecond() -> None:
    timeline = Timeline.planned(interleaved(2, 4))
    events = [event for event in timeline.chrome_trace()["traceEvents"] if event["ph"] == "X"]
    found = {
        Action(e["args"]["stage"], Kind(e["name"][0]), e["args"]["microbatch"]): (e["ts"], e["ts"] + e["dur"])
        for e in events
    }
    assert found == {action: (1000 * start, 1000 * end) for action, (start, end) in timeline.times.items()}


def test_jupyter_draws_it() -> None:
    assert measured()._repr_svg_() == measured().svg()


@pytest.mark.parametrize("name", ["a.svg", "new/deep er/my step.svg", "two.dots.svg", "schöne %20 Zeit.svg"])
def test_writes_picture_and_trace(tmp_path: Path, name: str) -> None:
    timeline = measured("GPU:0", "Gerät 1")
    for path in (tmp_path / name, str(tmp_path / name)):
        picture, trace = timeline.write(path)
        assert picture == tmp_path / name
        assert trace == picture.with_suffix(".json")
        assert picture.read_text(encoding="utf-8") == timeline.svg()
        assert json.loads(trace.read_text(encoding="utf-8")) == timeline.chrome_trace()


@pytest.mark.parametrize("name", ["a.png", "step", "svg", ".svg", "a.svg.json", "", "."])
def test_refuses_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"ends in \.svg.*path='{re.escape(name)}'\."):
        measured().write(name)
    assert not list(tmp_path.iterdir())
