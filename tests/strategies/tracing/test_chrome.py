"""Events for viewers."""

from strategies.tracing.chrome import trace_events
from strategies.tracing.collective_runs import collective_runs
from strategies.tracing.events import COMPUTING, Slice
from tests.strategies.tracing.records import MS, collective, record


def test_tracks_and_arrows() -> None:
    first = record(0, collective("a#0", 10, 30), collective("a#1", 20, 30), Slice("stage 0", "0F0", 0, MS))
    second = record(1, collective("a#0", 25, 31), Slice(COMPUTING, "forward", 1500, 2750))
    events = trace_events([first, second], collective_runs([first, second]))
    threads = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert threads == [
        *((0, name) for name in ("steps", "stage 0", "collectives", "collectives (2)")),
        *((1, name) for name in ("steps", "computing", "collectives")),
    ]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "rank 0 (host, CPU:0)",
        "rank 1 (host, CPU:0)",
    ]
    [computing] = [e for e in events if e["ph"] == "X" and e["name"] == "forward"]
    assert (computing["ts"], computing["dur"], computing["cat"]) == (1.5, 1.25, COMPUTING)
    arrows = [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", 0, 2, 10000.0), ("f", 1, 2, 25000.0)]
    [own] = [e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["ts"] == 10000]
    assert own["args"] == {
        "axis": "data",
        "last to come": "rank 1",
        "came before the last, ms": 15,
        "computed nothing, ms": 20,
    }


def test_a_rank_without_a_record_is_named() -> None:
    records = [record(rank, collective("a#0", rank, 9, members=(0, 1, 2)), world_size=3) for rank in range(2)]
    events = trace_events(records, collective_runs(records))
    assert {e["args"]["recorded by"] for e in events if e["name"] == "all_reduce"} == {"rank 0, rank 1"}
