"""The page of the grid, written from the outcomes of its cells."""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.surface import rows
from tests.surface.columns import COLUMNS
from tests.surface.meshes import MESHES

Cell = tuple[str, str, str]
Outcomes = Mapping[Cell, Mapping[str, Any]]

_HEAD = """# Keras' surface on meshes

Written by `make surface`, with {version}. Every layer of `keras.layers` that has weights ({number}
classes, found by walking the module) is trained in a small Functional model for two batches, of which the second is
smaller, on one device and on the mesh, with what is in the column done to the layer. Compared are predictions before
and after, losses, weights, slots of the optimizer, and the same of the saved file, opened in plain Keras, to 1e-6 in
float32 (relative where values are above 1; in mixed precision to the rounding of bfloat16).

A cell says how many layers were *equal / warned of / refused*; those for which plain Keras cannot do it either are left
out. "After" is done to the model that was split, everything else to the plain model before.
"""


def page(outcomes: Outcomes) -> str:
    """Returns the text of the page."""
    version = f"Keras {importlib.metadata.version('keras')} and TensorFlow {importlib.metadata.version('tensorflow')}"
    parts = [
        _HEAD.format(version=version, number=len(rows.ROWS)),
        _table(outcomes),
        _listed(outcomes, "wrong", "Wrong"),
        _listed(outcomes, "crash", "Crashed"),
        _listed(outcomes, "refused", "Refused, with the words"),
        _listed(outcomes, "warned", "Warned of, with the words"),
        _listed(outcomes, "absent", "What one device cannot do either"),
        "## Layers that are left out\n\n"
        + "\n".join(f"- {name}: {why}." for name, why in sorted(rows.LEFT_OUT.items())),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _table(outcomes: Outcomes) -> str:
    lines = [f"| | {' | '.join(MESHES)} |", "|---" * (len(MESHES) + 1) + "|"]
    for column in COLUMNS:
        counts = [
            Counter(each["kind"] for cell, each in outcomes.items() if cell[1:] == (column, mesh)) for mesh in MESHES
        ]
        texts = [" / ".join(str(count[kind]) for kind in ("equal", "warned", "refused")) for count in counts]
        lines.append(f"| {column} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _listed(outcomes: Outcomes, kind: str, title: str) -> str:
    """A section with the cells of one kind, by the words that are the same but for names and numbers."""
    by_words: dict[str, list[Cell]] = {}
    for cell, each in outcomes.items():
        if each["kind"] == kind:
            by_words.setdefault(
                re.sub(r"\d[\d.e+-]*", "N", each["words"]) if kind == "wrong" else each["words"], []
            ).append(cell)
    if not by_words:
        return ""
    items = [f"- {_names(cells)}: {words}" for words, cells in by_words.items()]
    return f"## {title}\n\n" + "\n".join(items) + "\n"


def _names(cells: Iterable[Cell]) -> str:
    by_rest: dict[tuple[str, str], list[str]] = {}
    for row, column, mesh in cells:
        by_rest.setdefault((row, column), []).append(mesh)
    texts = []
    for (row, column), meshes in by_rest.items():
        texts.append(f"{row}, {column}" + ("" if len(meshes) == len(MESHES) else f" ({', '.join(meshes)})"))
    return "; ".join(texts)
