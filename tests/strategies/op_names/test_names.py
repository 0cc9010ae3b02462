"""Names of operations, written and read."""

import pytest

from strategies.op_names import names
from strategies.op_names.names import StagePass


@pytest.mark.parametrize("is_done", [False, True])
def test_names_of_counting_operations(is_done: bool) -> None:
    name = names.counted(2, 17, is_done=is_done)
    for prefix, suffix in (("", ""), ("StatefulPartitionedCall/while/", ""), ("", "_1")):
        assert names.find_counted(prefix + name + suffix) == (2, 17, is_done)
    assert names.find_counted(f"x{name}") is None
    assert names.find_counted(f"{name}/ReadVariableOp") is None


def test_names_in_a_process() -> None:
    name = names.in_process("all_reduce", "data")
    assert names.find_in_process(f"replica_1/{name}_2/AddN") == ("all_reduce", "data")
    assert names.find_in_process(names.counted(0, 1, is_done=True)) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("call/pass.1.F.3/dense/MatMul", StagePass(1, "F", 3)),
        ("call/gradient_tape/pass.1.F.3/dense/MatMul", StagePass(1, "B", 3)),
        ("call/pass.1.W.12/PartitionedCall", StagePass(1, "W", 12)),
        ("gradient_tape/call/pass.0.I.0_1/x", StagePass(0, "I", 0)),
        ("call/bypass.1.F.3/x", None),
        ("dense/MatMul", None),
    ],
)
def test_names_of_passes(name: str, expected: StagePass | None) -> None:
    assert names.find_pass(name) == expected


def test_a_pass_is_found_by_its_scope() -> None:
    stage_pass = StagePass(2, "F", 0)
    assert names.find_pass(f"{names.pass_scope(stage_pass)}/x") == stage_pass
    assert str(stage_pass) == "2F0"
