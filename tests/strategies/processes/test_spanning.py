"""Runs `spanning.py` in several processes: every kind of crossing, the rest of the matrix with ``--parity-all``."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 900

#: Engine, processes, devices of each, meshes, tests. Each axis crosses, alone or with others, over either engine.
DEFAULT = [
    pytest.param("HorovodStrategy", 4, 1, [{"pipe": 2, "tensor": 2}], "mlp", id="four"),
    # `test_spanning_sharded` trains several replicas that span processes.
    pytest.param(
        *("HorovodStrategy", 4, 1, [{"data": 2, "pipe": 2}], "mlp"), marks=pytest.mark.parity_all, id="four, replicas"
    ),
    # `test_suites` runs other models in two processes.
    pytest.param(
        *("MultiWorkerMirroredStrategy", 2, 1, [{"pipe": 2}, {"tensor": 2}], "resnet"),
        marks=pytest.mark.parity_all,
        id="two",
    ),
]
ALL = [
    pytest.param(engine, *world, [], "", id=f"{engine}-{world[0]}-{world[1]}")
    for engine in matrix.ENGINES
    for world in matrix.WORLDS
]


def run(engine: str, num_ranks: int, num_local: int, meshes: list[dict[str, int]], only: str, folder: Path) -> None:
    options = ["-k", only] if only else []
    programs = matrix.started(engine, num_ranks, num_local, folder, meshes, options)
    matrix.assert_suite_passes(programs, num_ranks, LIMIT_SECONDS if only else matrix.LIMIT_SECONDS)


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(("engine", "num_ranks", "num_local", "meshes", "only"), DEFAULT)
def test_the_numbers_are_those_of_one_device(
    engine: str, num_ranks: int, num_local: int, meshes: list[dict[str, int]], only: str, tmp_path: Path
) -> None:
    run(engine, num_ranks, num_local, meshes, only, tmp_path)


@pytest.mark.timeout(matrix.LIMIT_SECONDS + 30)
@pytest.mark.parametrize(("engine", "num_ranks", "num_local", "meshes", "only"), ALL)
def test_whole_matrix(
    engine: str, num_ranks: int, num_local: int, meshes: list[dict[str, int]], only: str, tmp_path: Path
) -> None:
    run(engine, num_ranks, num_local, meshes, only, tmp_path)


def test_the_page_has_a_row_for_each_mesh() -> None:
    rows = [
        {"engine": "E", "ranks": 4, "devices": 1, "axes": {"pipe": 2, "tensor": 2}, "model": model, "largest": 3e-7}
        for model in ("mlp", "gpt")
    ]
    text = matrix.page(rows)
    assert "| E | 4 x 1 | pipe: 2, tensor: 2 | 3.0e-07 |  | 3.0e-07 |" in text
    assert matrix.rows_of(text) == rows
    again = matrix.page([*matrix.rows_of(text), {**rows[0], "largest": 2e-7}])
    assert again == text.replace("3.0e-07 |  |", "2.0e-07 |  |")


def test_only_meshes_in_which_a_replica_spans_processes_are_tried() -> None:
    assert matrix.meshes(2, 2) == [{"tensor": 4}, {"pipe": 2, "tensor": 2}, {"pipe": 4}]
    assert {"data": 2, "tensor": 2} in matrix.meshes(4, 1)
