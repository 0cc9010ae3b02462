"""The common parts of the benchmarks: ratios and tables as values, and workers that answer, fail, die and freeze."""

import functools
import itertools
import multiprocessing
import os
import time
from dataclasses import dataclass

import pytest
from harness.program import installed, print_tables
from harness.ratios import Comparison, quartiles, ratio_of, ratio_table, value_table
from harness.rounds import measure_in_turn
from harness.workers import Contender, Report, Run, WorkerError, Workers


@dataclass(frozen=True)
class Kind:
    requires: str


def count_up(start: int, report: Report) -> None:
    for value in itertools.count(start):
        report(value)


def report_environment(report: Report) -> None:
    while True:
        report(float(os.environ["VALUE_OF_THIS_PROCESS"]))


def fail_at_once(report: Report) -> None:
    raise ValueError("cannot be started")


def fail_in_turn(how: str, report: Report) -> None:
    report(0.0)
    if how == "raise":
        raise ValueError("cannot be measured")
    if how == "exit":
        os._exit(3)
    if how == "sleep":
        time.sleep(1000)


def test_ratio_is_of_medians_and_its_spread_is_of_rounds() -> None:
    ratio = ratio_of([2.0, 4.0, 12.0], [1.0, 4.0, 3.0])
    assert ratio.of_medians == 4 / 3
    assert (ratio.lower_quartile, ratio.upper_quartile) == (1.5, 3.0)
    assert quartiles([5.0]) == (5.0, 5.0)


def test_tables() -> None:
    measured = {"a": [90.0, 100.0, 110.0], "b": [100.0, 100.0, 100.0]}
    assert ratio_table([Comparison("a / b", "a", "b", 1.0), Comparison("b / a", "b", "a")], measured) == (
        "| comparison | ratio of medians | quartiles of each round's ratio | target | met |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| a / b | 1.000 | 0.950 to 1.050 | >= 1.00 | yes |\n"
        "| b / a | 1.000 | 0.955 to 1.056 |  |  |"
    )
    assert ratio_table([Comparison("a / b", "a", "b", 1.01)], measured).endswith(">= 1.01 | no |")
    assert ratio_table([Comparison("a / b", "a", "b", 1.0, at_most=True)], measured).endswith("<= 1.00 | yes |")
    assert ratio_table([Comparison("a / b", "a", "b", 0.99, at_most=True)], measured).endswith("<= 0.99 | no |")
    assert value_table({"a": [90.0, 100.0, 110.0]}, "images/s") == (
        "| contender | images/s, median | quartiles |\n| --- | --- | --- |\n| a | 100 | 95 to 105 |"
    )


def test_measures_in_turn_and_throws_the_first_measurement_away() -> None:
    pair = Contender("pair", report_environment, ({"VALUE_OF_THIS_PROCESS": "5"}, {"VALUE_OF_THIS_PROCESS": "7"}))
    contenders = [Contender("one", functools.partial(count_up, 10)), pair]
    assert measure_in_turn(contenders, 3, timeout_seconds=100) == {
        "one": [11.0, 12.0, 13.0],
        "pair": [12.0, 12.0, 12.0],
    }
    assert measure_in_turn([pair], 1, timeout_seconds=100, combine=min) == {"pair": [5.0]}
    assert not multiprocessing.active_children()
    assert "VALUE_OF_THIS_PROCESS" not in os.environ


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (fail_at_once, "cannot be started"),
        (functools.partial(fail_in_turn, "raise"), "cannot be measured"),
        (functools.partial(fail_in_turn, "return"), "It returned"),
        (functools.partial(fail_in_turn, "exit"), "ended by itself, exit code 3"),
    ],
)
def test_names_the_contender_that_fails(run: Run, reason: str) -> None:
    contenders = [Contender("good", functools.partial(count_up, 0)), Contender("bad", run)]
    with pytest.raises(WorkerError, match=f"(?s)'bad', process 0 of 1.*{reason}"):
        measure_in_turn(contenders, 1, timeout_seconds=100)
    assert not multiprocessing.active_children()


def test_names_the_contender_that_does_not_answer() -> None:
    workers = Workers(Contender("bad", functools.partial(fail_in_turn, "sleep")), timeout_seconds=100)
    # From now on: the start of the process took its time.
    workers._timeout_seconds = 0.3
    with pytest.raises(WorkerError, match=r"'bad', process 0 of 1: no answer for 0\.3 s"):
        workers.measure()
    workers.stop()
    assert not multiprocessing.active_children()


def test_refuses_two_contenders_of_one_name() -> None:
    twice = Contender("twice", fail_at_once)
    with pytest.raises(ValueError, match="unique names"):
        measure_in_turn([twice, twice], 1, timeout_seconds=1)


def test_leaves_out_whose_library_is_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {"here": Kind("json"), "elsewhere": Kind("no_such_library")}
    assert installed(["here", "elsewhere", "here"], kinds) == ["here"]
    assert capsys.readouterr().out == "Left out: elsewhere; no_such_library is not installed.\n"


def test_prints_ratios_and_measurements_but_of_derived_values_only_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"a": [2.0], "b": [1.0]}
    print_tables("title", [Comparison("a / c", "a", "c")], measured, "rows/s", {"c": [4.0]})
    heading, ratios, values = capsys.readouterr().out.strip().split("\n\n")
    assert heading == "## title"
    assert [line.split(" | ")[:2] for line in ratios.splitlines()[2:]] == [["| a / c", "0.500"]]
    assert [line.split(" | ")[:2] for line in values.splitlines()[2:]] == [["| a", "2"], ["| b", "1"]]
