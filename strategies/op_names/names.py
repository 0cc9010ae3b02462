"""The names of operations by which a trace shows collectives and the passes of pipeline stages. Pure.

TensorFlow's profiler records each operation of a step by its name, whenever it is asked to. Names cost nothing at run
time, so a job can be recorded at any time without tracing its step anew.

    collective.2.17.started              an operation right before collective 17 of ledger 2
    collective.2.17.done                 one right after it
    collective.all_reduce.data/AddN      an operation of a collective inside one process
    pass.1.F.3/dense/MatMul              an operation of stage 1's forward pass of micro-batch 3
    gradient_tape/pass.1.F.3/...         one of its backward pass: TensorFlow names it after the forward operation
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNTED = re.compile(r"(?:^|/)collective\.(\d+)\.(\d+)\.(started|done)(?:_\d+)?$")
_IN_PROCESS = re.compile(r"(?:^|/)collective\.([a-z_]+)\.([a-z]+)(?:_\d+)?(?:/|$)")
_PASS = re.compile(r"(?:^|/)pass\.(\d+)\.([A-Z])\.(\d+)(?:_\d+)?(?:/|$)")
_BACKWARD = "gradient_tape/"


@dataclass(frozen=True, order=True)
class StagePass:
    """A pass of a pipeline's stage.

    Attributes:
        stage: the stage.
        kind: "F" for forward, "B" for backward; "I" and "W" for the halves of a backward pass.
        microbatch: the micro-batch.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def counted(ledger: int, entry: int, *, is_done: bool) -> str:
    """Returns the name of the operation by which a ledger counts the starts, or the ends, of a collective."""
    return f"collective.{ledger}.{entry}.{'done' if is_done else 'started'}"


def find_counted(name: str) -> tuple[int, int, bool] | None:
    """Returns ledger, entry and `is_done` of an operation named by :func:`counted`; None for other operations."""
    found = _COUNTED.search(name)
    return (int(found[1]), int(found[2]), found[3] == "done") if found else None


def in_process(kind: str, axis: str) -> str:
    """Returns the name scope of a collective between devices of one process.

    Args:
        kind: "all_reduce" or the like.
        axis: the mesh axis.
    """
    return f"collective.{kind}.{axis}"


def find_in_process(name: str) -> tuple[str, str] | None:
    """Returns kind and axis of an operation in the scope :func:`in_process`; None for other operations."""
    found = _IN_PROCESS.search(name)
    return (found[1], found[2]) if found else None


def pass_scope(stage_pass: StagePass) -> str:
    """Returns the name scope of the operations of a stage's pass."""
    return f"pass.{stage_pass.stage}.{stage_pass.kind}.{stage_pass.microbatch}"


def find_pass(name: str) -> StagePass | None:
    """Returns the pass to which an operation belongs; None for other operations."""
    found = _PASS.search(name)
    if found is None:
        return None
    is_backward = found[2] == "F" and _BACKWARD in name[: found.start() + 1]
    return StagePass(int(found[1]), "B" if is_backward else found[2], int(found[3]))
