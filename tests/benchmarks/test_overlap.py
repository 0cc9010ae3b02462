"""`python benchmarks/overlap/main.py`: shares and traces as values, and one tiny real run. Nothing is timed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import BENCHMARKS

MAIN = BENCHMARKS / "overlap" / "main.py"


def test_shares_of_a_step() -> None:
    from overlap.intervals import Interval, Step

    step = Step(Interval(0, 10), (Interval(2, 4), Interval(5, 7)), (Interval(3, 6), Interval(6, 9)))
    # The second starts after the start of the last backward op; from 3 to 7 of 3 to 9 is hidden.
    assert step.share_started == 0.5
    assert step.share_hidden == pytest.approx(4 / 6)


def test_a_step_holds_what_began_in_it() -> None:
    from overlap.intervals import Interval, steps

    whole = [Interval(10, 20), Interval(0, 10), Interval(20, 30)]
    found = steps(whole, [Interval(1, 2), Interval(12, 13), Interval(22, 23)], [Interval(9, 11), Interval(19, 21)])
    assert [step.whole.start for step in found] == [0, 10]
    assert [step.reductions for step in found] == [(Interval(9, 11),), (Interval(19, 21),)]


def test_chart() -> None:
    from overlap.intervals import Interval, Step, chart

    step = Step(Interval(0, 10), (Interval(2, 6),), (Interval(5, 7.2),))
    assert chart(step, width=10) == "backward    ..####....\nall-reduce  .....##-.."


def test_reads_a_timeline_that_is_not_closed(tmp_path: Path) -> None:
    from overlap.intervals import Interval
    from overlap.traces import horovod_timeline

    def tensor(number: int, name: str) -> list[dict[str, object]]:
        said = {"ph": "M", "name": "process_name", "pid": number}
        parts = [("B", "NEGOTIATE_ALLREDUCE", 1), ("E", "", 2), ("B", "ALLREDUCE", 3), ("B", "GLOO_ALLREDUCE", 4)]
        timed = [{"ph": kind, "name": part, "ts": at * 1000, "pid": number} for kind, part, at in parts]
        ends = [{"ph": "E", "ts": at * 1000, "pid": number} for at in (5, 6)]
        return [{**said, "args": {"name": name}}, *timed, *ends]

    start = {"ph": "M", "name": "process_name", "pid": 0, "args": {"start_time_since_epoch_in_micros": 7_000_000}}
    events = [start, *tensor(1, "x_1of2"), *tensor(2, "x_2of2"), *tensor(3, "y")]
    file = tmp_path / "timeline.json"
    file.write_text("[\n" + ",\n".join(map(json.dumps, events)) + ",\n")
    assert horovod_timeline(file) == [Interval(7001, 7006), Interval(7001, 7006)]


@pytest.mark.timeout(600)
@pytest.mark.parity_all
def test_traces_both_engines() -> None:
    pytest.importorskip("horovod")
    done = subprocess.run(
        [sys.executable, str(MAIN), "--model=small_cnn", "--batch_size=8"],
        cwd=BENCHMARKS.parent,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-reduces, ") == 2
    assert done.stdout.count("\nbackward    ") == done.stdout.count("\nall-reduce  ") == 2
