from collections.abc import Iterator

import keras
import pytest

from tests.surface import cells, rows, sample
from tests.surface.columns import COLUMNS
from tests.surface.meshes import MESHES


@pytest.fixture(autouse=True)
def _whole_tracebacks() -> Iterator[None]:
    """Shows whole tracebacks: the location of an error tells whose message it has."""
    keras.config.disable_traceback_filtering()
    yield
    keras.config.enable_traceback_filtering()


def test_every_layer_of_keras_with_weights_has_a_row() -> None:
    assert rows.unknown() == [], "give each a row in tests/surface/rows.py"
    assert set(rows.ROWS) | set(rows.LEFT_OUT) <= set(rows.names())


def test_the_sample_has_every_column_and_every_mesh() -> None:
    chosen = list(sample.cells())
    assert {column for _, column, _ in chosen} == set(COLUMNS)
    assert {mesh for _, _, meshes in chosen for mesh in meshes} == set(MESHES)


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    ("row", "column", "meshes"),
    [pytest.param(*each, id=f"{each[0]}-{each[1]}".replace(" ", "_").replace(",", "")) for each in sample.cells()],
)
def test_cells(row: str, column: str, meshes: tuple[str, ...]) -> None:
    found = {mesh: cells.outcome(row, column, mesh) for mesh in meshes}
    assert all(each.is_allowed and each.kind != "absent" for each in found.values()), found
