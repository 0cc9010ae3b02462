"""`python benchmarks/all_reduce/main.py`: cases and turns as values, and one tiny real run. Nothing is timed."""

import functools
import itertools
import time

import pytest

from tests.benchmarks import run_benchmark

TENSORFLOW = ("multi_worker", "stock", "horovod", "raw_horovod")


run = functools.partial(run_benchmark, "all_reduce")


@pytest.mark.timeout(600)
@pytest.mark.parity_all
def test_prints_ratios_of_all_that_tensorflow_runs() -> None:
    pytest.importorskip("horovod")
    done = run("--rounds=1", "--megabytes=0.01", *(f"--contender={name}" for name in TENSORFLOW))
    assert done.returncode == 0, done.stderr
    assert "## all-reduce: 2 processes, float32, 1 rounds" in done.stdout
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0]: row[1:] for row in rows if len(row) == 5}
    assert list(ratios)[2:] == [
        "multi_worker / stock, 0.01 MB, one tensor",
        "multi_worker / stock, 0.01 MB, list",
        "horovod / raw_horovod, 0.01 MB, one tensor",
        "horovod / raw_horovod, 0.01 MB, list",
    ]
    assert all(float(row[0]) > 0 for row in list(ratios.values())[2:])
    assert len([row for row in rows if len(row) == 3]) == 2 + 2 * len(TENSORFLOW)


@pytest.mark.parametrize("flag", ["--contender=mpi", "--megabytes=0", "--rounds=0", "--processes=1", "horovod"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_a_list_is_as_large_as_one_tensor() -> None:
    from all_reduce.cases import Case

    one, many = Case(100.0, False), Case(100.0, True)
    assert one.tensor_sizes == [25_000_000]
    assert len(many.tensor_sizes) == 32
    assert sum(many.tensor_sizes) == 25_000_000
    assert max(many.tensor_sizes) > 20 * min(many.tensor_sizes)
    assert one.gigabytes == 0.1
    assert min(Case(0.001, True).tensor_sizes) == 1
    assert (one.num_calls, Case(0.1, False).num_calls) == (5, 50)


def test_every_case_is_measured_going_forwards_and_backwards() -> None:
    from all_reduce.cases import by_case, make_cases, num_turns, turns

    cases = make_cases([0.1, 1.0])
    assert [str(case) for case in cases] == ["0.1 MB, one tensor", "0.1 MB, list", "1 MB, one tensor", "1 MB, list"]
    count = num_turns(cases, 2)
    in_turn = list(itertools.islice(turns(cases), count))
    for case in cases:
        directions = [index % 2 for index, other in enumerate(in_turn) if other == case]
        assert directions == [0, 1, 0, 1]
    measured = by_case({"a": [float(index) for index in range(count)]}, cases)
    assert measured["a, 0.1 MB, one tensor"] == [0.0, 1.0, 8.0, 9.0]
    assert measured["a, 1 MB, list"] == [6.0, 7.0, 14.0, 15.0]


def test_targets_are_for_the_largest_size() -> None:
    from all_reduce import contenders
    from all_reduce.cases import make_cases

    found = contenders.comparisons(make_cases([10.0, 100.0]), list(contenders.KINDS))
    targets = {comparison.name: comparison.target for comparison in found if comparison.target is not None}
    assert targets == {
        "multi_worker / stock, 100 MB, one tensor": 2.3,
        "multi_worker / stock, 100 MB, list": 2.3,
        "horovod / raw_horovod, 100 MB, one tensor": 0.95,
        "horovod / raw_horovod, 100 MB, list": 0.95,
    }
    assert contenders.comparisons(make_cases([1.0]), ["horovod", "stock"]) == []


def test_flags_name_every_contender() -> None:
    from all_reduce import contenders

    done = run("--helpshort")
    assert f"<{'|'.join(contenders.KINDS)}>" in "".join(line.strip() for line in done.stdout.splitlines())


@pytest.mark.parametrize("of_processor", [False, True])
def test_counts_the_seconds_that_are_asked_for(of_processor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from all_reduce import clock
    from all_reduce.cases import Case

    class EnoughError(Exception):
        pass

    reported = []

    def report(value: float) -> None:
        reported.append(value)
        if len(reported) == 2:
            raise EnoughError

    # An all-reduce that takes 4 s, with 1 s of CPU time.
    now = {"perf_counter": 0.0, "process_time": 0.0}

    def call() -> None:
        now["perf_counter"] += 4
        now["process_time"] += 1

    for name in now:
        monkeypatch.setattr(time, name, lambda name=name: now[name])
    with pytest.raises(EnoughError):
        clock.measure([Case(100.0, False, of_processor)], lambda case: call, report)
    assert reported == [0.0, 0.1 if of_processor else 0.025]
