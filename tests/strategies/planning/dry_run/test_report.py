"""The report of a dry run: text by groups of ranks, JSON with all of them."""

from __future__ import annotations

import json

from strategies.planning.dry_run.report import as_json, as_text, ranges
from tests.strategies.planning.dry_run.jobs import dry_run


def test_ranks_that_run_the_same_program_share_a_line() -> None:
    run = dry_run(16, 4, 4, num_microbatches=8, sequence_parallel=True)
    lines = as_text(run).splitlines()
    assert lines[0] == (
        "256 ranks on 64 hosts, mesh data=16, pipe=4, tensor=4: 1f1b with 8 micro-batches of 1 row, "
        "sequence parallelism."
    )
    assert len(lines) < 30
    [first] = [line for line in lines if line.startswith("0     0-3, 16-19, ... 240-243 (64)")]
    assert first.split()[-1] == f"{run.positions[0].idle:.1%}"
    assert any(line.startswith("tensor") and line.split()[1:4] == ["64", "4", "0-3"] for line in lines)
    assert any(line.startswith("No deadlock: all") for line in lines)


def test_ranks_are_listed_on_request() -> None:
    lines = as_text(dry_run(2, 1, 4), lists_ranks=True).splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:1] == ["rank"])
    assert lines[at].split() == ["rank", "host", "device", "data", "expert", "pipe", "tensor"]
    assert [line.split() for line in lines[at + 1 : at + 9]][6] == ["6", "1", "GPU:2", "1", "0", "0", "2"]


def test_one_rank() -> None:
    text = as_text(dry_run())
    assert "Nothing is sent between hosts." in text
    assert "The ranks exchange nothing." in text
    assert "No imbalance of more than 10 %." in text


def test_json_has_everything() -> None:
    run = dry_run(2, 2, 2, schedule="zb_h1")
    found = json.loads(as_json(run))
    assert [each["rank"] for each in found["ranks"]] == list(range(8))
    assert found["ranks"][5] == {
        "rank": 5,
        "host": 1,
        "device": "GPU:1",
        "coordinates": {"data": 1, "expert": 0, "pipe": 0, "tensor": 1},
    }
    assert found["groups"]["data"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert list(map(len, found["programs"])) == list(map(len, run.programs))
    assert found["programs"][0][1] == {
        "kind": "all_reduce",
        "what": "embeddings of tokens in 0F0",
        "axis": "tensor",
        "bytes": 2048.0,
    }
    assert found["deadlock"] is None
    assert found["num_operations"] == sum(map(len, run.program_of_rank))


def test_ranges() -> None:
    assert ranges([3]) == "3"
    assert ranges([0, 1, 2, 3]) == "0-3"
    assert ranges([0, 4]) == "0, 4"
    assert ranges(range(0, 64, 8)) == "0, 8, ... 56"
    assert ranges([0, 1, 8, 9, 16, 17, 24, 25]) == "0-1, 8-9, ... 24-25"
