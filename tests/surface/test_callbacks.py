"""Callbacks behave as on one device: a fixed sample; with `--parity-all` every class on every mesh."""

import pytest

from tests.surface import callbacks

#: One mesh for each class, and cells that have ever failed.
SAMPLE = {
    "BackupAndRestore": ["shard=weights"],
    "CSVLogger": ["pipe=2"],
    "EarlyStopping": ["shard=weights"],
    "LambdaCallback": ["data=2"],
    "LearningRateScheduler": ["tensor=2"],
    "ModelCheckpoint": ["shard=optimizer"],
    "OrbaxCheckpoint": ["shard=optimizer", "tensor=2"],
    "ReduceLROnPlateau": ["pipe=2"],
    "SwapEMAWeights": ["data=2", "shard=optimizer"],
    "TensorBoard": ["shard=weights", "tensor=2"],
    "TerminateOnNaN": ["data=2"],
}


def cells() -> list[object]:
    """Returns all cells; those that are not in the sample have a mark."""
    every = [(row, mesh) for row in callbacks.ROWS for mesh in callbacks.MESHES]
    left_out = pytest.mark.parity_all
    return [pytest.param(*cell, marks=[] if cell[1] in SAMPLE.get(cell[0], []) else left_out) for cell in every]


def test_every_class_has_a_row() -> None:
    assert set(callbacks.names()) <= set(callbacks.ROWS), "give each a row in tests/surface/callbacks.py"


@pytest.mark.parametrize(("row", "mesh"), cells())
def test_equals_one_device(row: str, mesh: str) -> None:
    found = callbacks.outcome(row, mesh)
    words = {"refused": callbacks.REFUSED, "warned": callbacks.WARNED}.get(found.kind, {})
    assert found.kind == "equal" or words.get((row, mesh), "?") in found.words, found
