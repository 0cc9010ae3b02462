"""Collectives, passes, input and computing, from operations made by hand."""

from __future__ import annotations

from typing import Any

from strategies.op_names import names
from strategies.tracing import reading
from strategies.tracing.events import COLLECTIVES, COMPUTING, INPUT, STEPS, Operation, Slice

KNOWN = reading.Collective("7/1", "all_reduce", "gradients", (0, 1), "data", 8, "CPU:0", 5)


def op(name: str, begin: int, end: int, kind: str = "MatMul", **fields: Any) -> Operation:
    return Operation(name, kind, begin, end, **fields)


def mark(begin: int, end: int, *, is_done: bool, **fields: Any) -> Operation:
    return op(f"call/{names.counted(0, 3, is_done=is_done)}", begin, end, "ResourceScatterAdd", **fields)


def test_runs_of_a_collective() -> None:
    """The first end belongs to a run that began before the profile, the last start to one that ended after it."""
    operations = [
        mark(1, 2, is_done=True),
        *(mark(begin, begin + 1, is_done=False) for begin in (30, 10, 50)),
        *(mark(end, end + 1, is_done=True) for end in (20, 40)),
        op(names.counted(0, 4, is_done=False), 1, 2),
    ]
    runs, num_open = reading.collectives(operations, {(0, 3): KNOWN})
    assert num_open == 1
    assert [(each.key, each.begin, each.end) for each in runs] == [("7/1#5", 11, 20), ("7/1#6", 31, 40)]
    details = {"what": "gradients", "axis": "data", "bytes": 8, "device": "CPU:0", "collective": "7/1", "run": 5}
    assert runs[0].details == details
    assert (runs[0].name, runs[0].track, runs[0].members) == ("all_reduce of gradients", COLLECTIVES, (0, 1))


def test_a_collective_of_a_gpu_is_marked_there() -> None:
    """The host's operations only launch the marks."""
    operations = [mark(at, at + 1, is_done=at == 5, device=device) for at in (1, 5) for device in ("", "GPU:0")]
    for device in ("GPU:0", "CPU:0"):
        known = reading.Collective("k", "all_reduce", "", (0, 1), "", None, device, 0)
        runs, _ = reading.collectives(operations, {(0, 3): known})
        assert [(each.begin, each.end) for each in runs] == [(2, 5)]


def test_collectives_in_a_process() -> None:
    scope = names.in_process("all_reduce", "data")
    operations = [
        op(f"{scope}/AddN", 0, 10),
        op(f"{scope}_1/AddN", 15_000, 20_000),
        op(f"{scope}/AddN", 90_000, 99_000),
    ]
    found = reading.collectives_in_process(operations)
    assert [(each.name, each.begin, each.end) for each in found] == [
        ("all_reduce", 0, 20_000),
        ("all_reduce", 90_000, 99_000),
    ]


def test_passes_that_are_calls() -> None:
    def call(kind: str, begin: int, end: int) -> Operation:
        return op(f"call/pass.1.{kind}.0/PartitionedCall", begin, end, "PartitionedCall", is_call=True)

    # The loss and its gradient are in line.
    loss = [op("pass.1.F.0/sub", 20, 21), op("gradient_tape/pass.1.F.0/mul", 22, 23)]
    found = reading.passes([call("W", 40, 50), call("F", 10, 20), call("I", 30, 41), *loss], [])
    assert [(each.track, each.name, each.begin, each.end) for each in found] == [
        ("stage 1", "1F0", 10, 20),
        ("stage 1", "1I0", 30, 40),
        ("stage 1", "1W0", 40, 50),
    ]


def test_passes_in_line() -> None:
    """A read before the pass, and an operation that runs after the next pass has begun, do not count."""
    step = [
        op("pass.0.F.0/read", 1, 2, "ReadVariableOp"),
        op("pass.0.F.1/read", 2, 3, "ReadVariableOp"),
        op("replica_1/pass.0.F.0/x", 5, 30),
        op("gradient_tape/replica_1/pass.0.F.0/x", 30, 50),
        op("pass.0.F.0/x", 10, 20),
        op("pass.0.F.0/y", 20, 25),
        op("pass.0.F.1/x", 30, 40),
        op("gradient_tape/pass.0.F.1/x", 38, 60),
        op("pass.0.F.1/y", 61, 62),
    ]
    later = [op(each.name, each.begin + 100, each.end + 100, each.kind) for each in step]
    windows = [Slice(STEPS, "step", begin, begin + 99, {"count": 1}) for begin in (0, 100)]
    found = reading.passes([*step, *later], windows)
    first = [("0F0", 10, 25), ("0F1", 30, 38), ("0B1", 38, 60)]
    assert [(each.name, each.begin, each.end) for each in found if each.track == "stage 0"] == [
        *first,
        *((name, begin + 100, end + 100) for name, begin, end in first),
    ]
    assert [each.begin for each in found if each.track == "replica 1, stage 0"] == [5, 30, 105, 130]
    both = reading.passes([*step, *later], [Slice(STEPS, "steps", 0, 200, {"count": 2})])
    assert both == found


def test_reads_right_before_their_pass() -> None:
    """Nothing of another pass runs between the reads and the pass, only time passes."""
    pause = 1_000_000
    operations = [
        op("pass.0.F.0/read", 0, 10),
        op("pass.0.F.0/x", pause, pause + 500),
        # It waits for a collective meanwhile.
        op("pass.0.F.0/y", 2 * pause, 2 * pause + 400),
    ]
    found = reading.passes(operations, [Slice(STEPS, "step", 0, 3 * pause, {"count": 1})])
    assert [(each.begin, each.end) for each in found] == [(pause, 2 * pause + 400)]


def test_input_and_computing() -> None:
    operations = [
        op("IteratorGetNextOp::DoCompute", 0, 5, INPUT),
        op("dense/MatMul", 10, 20),
        op("dense/Relu", 18, 30),
        op("gradient_tape/dense/MatMul", 29, 40),
        op("call/my.adam_1/Add", 40, 41),
        op("update_0/x/Add", 41, 42),
        op("replica_1/dense/MatMul", 10, 20),
        op("dense/MatMul", 100_000, 100_001),
        op("CollectiveReduceV2", 0, 90, "CollectiveReduceV2"),
        op("_Send", 0, 90, "_Send"),
        op("PartitionedCall", 0, 90, "PartitionedCall", is_call=True),
        mark(60, 61, is_done=True),
    ]
    assert [(each.track, each.begin, each.end) for each in reading.inputs(operations)] == [(INPUT, 0, 5)]
    slices, busy = reading.computing(operations, ["my.adam"])
    assert [(each.track, each.name, each.begin, each.end) for each in slices] == [
        (COMPUTING, "forward", 10, 29),
        (COMPUTING, "backward", 29, 40),
        (COMPUTING, "update", 40, 42),
        (COMPUTING, "forward", 100_000, 100_001),
        (f"replica 1, {COMPUTING}", "forward", 10, 20),
    ]
    assert busy == [(10, 42), (100_000, 100_001)]


def test_kernels_of_gpus_count_instead_of_their_launches() -> None:
    operations = [op("dense/MatMul", 0, 1), op("dense/MatMul", 5, 25, device="GPU:0")]
    slices, busy = reading.computing(operations)
    assert busy == [(5, 25)]
    assert [each.track for each in slices] == [f"GPU:0 {COMPUTING}"]
