"""The picture of one step."""

import re
from xml.etree import ElementTree

import pytest

from strategies.tracing.events import COMPUTING, INPUT, Slice
from strategies.tracing.job_trace import JobTrace
from tests.strategies.tracing.records import MS, collective, record


def test_lanes_and_boxes() -> None:
    own = [
        Slice("stage 0", "0F1", 5 * MS, 20 * MS, {"stage": 0, "micro-batch": 1}),
        Slice("stage 0", "0W1", 20 * MS, 30 * MS, {"stage": 0, "micro-batch": 1}),
        Slice(INPUT, "next batch", 0, MS),
        Slice(COMPUTING, "forward", 5 * MS, 20 * MS),
        collective("a#1", 20, 50),
    ]
    first = record(0, *own, collective("a#0", 10, 30))
    second = record(1, collective("a#0", 25, 31), Slice(COMPUTING, "update", 1500, 27500))
    text = JobTrace((first, second)).svg("A job")
    assert JobTrace((first, second))._repr_svg_() == JobTrace((first, second)).svg()
    ElementTree.fromstring(text)
    assert text.count('class="box"') == 7
    lanes = re.findall(r"rank (\d): ([^<]+)<", text)
    names = ["stage 0", "input", "collectives", "collectives (2)"]
    assert lanes == [*(("0", name) for name in names), ("1", COMPUTING), ("1", "collectives")]
    assert "the last recorded step of 2 ranks" in text


def test_without_a_step() -> None:
    trace = JobTrace((record(0).__class__(0, 1, "host", (), (), record(0).shares),))
    with pytest.raises(ValueError, match="Received: a rank without a step"):
        trace.svg()
    # Jupyter shows the text then.
    assert trace._repr_svg_() is None
