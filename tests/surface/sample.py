"""The cells of the grid that `make test` runs: a fixed sample, and those that have ever failed."""

from __future__ import annotations

from collections.abc import Iterator

from tests.surface.meshes import MESHES

#: By layer and column, one mesh or several, or all of them.
SAMPLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("Dense", "as it is"): tuple(MESHES),
}


def cells() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields layer, column and meshes."""
    for (row, column), meshes in SAMPLE.items():
        yield row, column, meshes
