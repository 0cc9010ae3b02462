"""The trace of a job: its text, its file, and its summary."""

import json
from pathlib import Path

import pytest

from strategies.tracing.job_trace import JobTrace
from tests.strategies.tracing.checks import read_valid
from tests.strategies.tracing.records import collective, record


def test_texts_of_ranks_become_a_file(tmp_path: Path) -> None:
    first, second = record(0, collective("a#0", 10, 30)), record(1, collective("a#0", 25, 31))
    trace = JobTrace.from_texts([second.to_text(), first.to_text()])
    assert trace.records == (first, second)
    path = trace.write(tmp_path / "made" / "timeline.json")
    found = read_valid(path, num_ranks=2)
    assert found["otherData"]["ranks recorded"] == 2
    assert found["otherData"]["summary"] == str(trace).splitlines()
    assert json.loads(trace.to_json()) == found


def test_records_that_do_not_fit_are_refused() -> None:
    for records in ((), (record(0), record(0)), (record(0), record(1, world_size=3))):
        with pytest.raises(ValueError, match=r"one record of each rank of one job\. Received: records of ranks \["):
            JobTrace(records)
