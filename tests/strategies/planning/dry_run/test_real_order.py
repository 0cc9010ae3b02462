"""The programs of a dry run are what real ranks trace: kinds, groups, order and bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strategies.planning import Layout, Transformer
from strategies.planning.dry_run import DryRun, Job
from strategies.planning.dry_run.operations import OperationKind
from tests.processes import Programs, cluster_environments, python
from tests.strategies.planning.dry_run import real_order as real

#: Metrics, penalties of weights, and what they add to a bucket; a dry run leaves them out.
SMALL = 16
LIMIT_SECONDS = 600


def expected(setting: real.Setting, rank: int) -> list[list[Any]]:
    """Returns the program of a rank, as `real_order.recorded` writes it."""
    data, pipe, tensor = (setting.mesh.get(axis, 1) for axis in ("data", "pipe", "tensor"))
    number = real.NUM_MICROBATCHES if pipe > 1 else 1
    layout = Layout(
        data,
        pipe,
        tensor,
        real.ROWS // data // number,
        sequence_parallel=setting.sequence_parallel,
        shard=setting.shard,
    )
    model = Transformer(real.BLOCKS, real.UNITS, real.HEADS, real.TOKENS, real.VOCABULARY)
    job = Job.create(model, layout, real.ROWS, schedule=setting.schedule)
    run = DryRun.create(replace(job, activation_bytes=4, bucket_bytes=real.BUCKET_BYTES))
    assert run.deadlock is None
    found: list[list[Any]] = []
    for each in run.program_of_rank[rank]:
        if each.kind is not OperationKind.COMPUTE:
            group = run.placement.group(rank, each.axis)
            found.append(
                [each.kind.value, [group[end] for end in each.ends] if each.ends else each.axis, each.num_bytes]
            )
    return found


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("num_ranks", "names"),
    [
        (2, ["weights", "1f1b"]),
        pytest.param(
            2,
            ["data", "optimizer", "tensor", "sequence", "interleaved", "zb_v"],
            marks=pytest.mark.parity_all,
            id="others",
        ),
        pytest.param(
            4, [name for name, each in real.SETTINGS.items() if len(each.mesh) > 1], marks=pytest.mark.parity_all
        ),
    ],
)
def test_ranks_trace_the_programs(num_ranks: int, names: list[str], tmp_path: Path) -> None:
    program = python(str(Path(real.__file__)), str(tmp_path), *names)
    with Programs(tmp_path, [program] * num_ranks, cluster_environments(num_ranks)) as programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output()
    assert codes == [0] * num_ranks, output
    for rank in range(num_ranks):
        rows = json.loads((tmp_path / f"rank{rank}.json").read_text())
        for name in names:
            traced = [each for each in rows[name] if each[2] > SMALL]
            wanted = expected(real.SETTINGS[name], rank)
            assert [each[:2] for each in traced] == [each[:2] for each in wanted], name
            assert [each[2] for each in traced] == pytest.approx([each[2] for each in wanted], rel=0, abs=SMALL), name
