"""The page of the grids, written from the outcomes of their cells."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.measured import measured_today
from tests.surface import rows
from tests.surface.columns import COLUMNS
from tests.surface.meshes import MESHES

Outcomes = Sequence[Mapping[str, Any]]

_HEAD = """# Keras' surface on meshes

Written by `make surface`. {measured} Each cell is trained on one device and on the mesh, and is *equal* to 1e-6 in
float32 (relative where values are above 1; in mixed precision to the rounding of bfloat16), *warned of* by a
`strategies.DifferenceWarning`, or *refused* by an error that says what to do.

## Layers

Every layer of `keras.layers` that has weights ({number} classes, found by walking the module) is trained in a small
Functional model for two batches, of which the second is smaller, with what is in the column done to the layer. Compared
are predictions before and after, losses, weights, slots of the optimizer, and the same of the saved files, opened in
plain Keras. "After" is done to the model that was split, all else to the plain model before.

Numbers of layers that are equal / warned of / refused; those for which plain Keras cannot do it are left out:
"""
_CALLBACKS = """## Callbacks

Every class of `keras.callbacks`, with what it keeps, writes and restores:
"""
_READERS = """## Readers

Two epochs from every kind of input that `fit` takes, with weights of rows where it has them; stops are at the third
step of the second epoch, after which a new `fit` goes on from what the callback kept. An empty cell was not run:
"""


def page(outcomes: Outcomes) -> str:
    """Returns the text of the page."""
    layers = [each for each in outcomes if each["grid"] == "layers"]
    callbacks = [each for each in outcomes if each["grid"] == "callbacks"]
    readers = [each for each in outcomes if each["grid"] in ("readers", "processes")]
    parts = [_HEAD.format(measured=measured_today(), number=len(rows.ROWS)), _table_of_layers(layers), _not_run(layers)]
    parts.append(_words(layers))
    parts.append("Left out:\n\n" + "\n".join(f"- {name}: {why}." for name, why in sorted(rows.LEFT_OUT.items())) + "\n")
    for title, found in ((_CALLBACKS, callbacks), (_READERS, readers)):
        parts += [title, _table(found), _words(found)] if found else []
    return "\n".join(part for part in parts if part)


def _table_of_layers(outcomes: Outcomes) -> str:
    lines = [f"| | {' | '.join(MESHES)} |", "|---" * (len(MESHES) + 1) + "|"]
    for column in COLUMNS:
        lines.append(f"| {column} | {' | '.join(_counts(outcomes, column, mesh) for mesh in MESHES)} |")
    return "\n".join(lines) + "\n"


def _not_run(outcomes: Outcomes) -> str:
    """Returns a sentence with the layers of which cells are missing; empty if there are none."""
    count = Counter(each["cell"][0] for each in outcomes)
    size = len(COLUMNS) * len(MESHES)
    missing = [f"{row} ({size - count[row]} of {size} cells)" for row in rows.ROWS if count[row] < size]
    return f"Not run: {', '.join(missing)}.\n" if missing else ""


def _counts(outcomes: Outcomes, column: str, mesh: str) -> str:
    count = Counter(each["kind"] for each in outcomes if each["cell"][1:] == [column, mesh])
    return " / ".join(str(count[kind]) for kind in ("equal", "warned", "refused"))


def _table(outcomes: Outcomes) -> str:
    kinds = {tuple(each["cell"]): each["kind"] for each in outcomes}
    columns = list(dict.fromkeys(column for _, column in kinds))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in dict.fromkeys(row for row, _ in kinds):
        lines.append(f"| {row} | {' | '.join(kinds.get((row, column), '') for column in columns)} |")
    return "\n".join(lines) + "\n"


def _words(outcomes: Outcomes) -> str:
    """Returns a list of the cells that are not equal, by kind and message."""
    by_words: dict[tuple[str, str], list[list[str]]] = {}
    for each in outcomes:
        if each["kind"] != "equal":
            # Keras prints some words in bold.
            words = re.sub(r"\x1b\[\d*m", "", each["words"])
            words = textwrap.shorten(words, 240, placeholder=" ...") if each["kind"] == "absent" else words
            by_words.setdefault((each["kind"], words), []).append(each["cell"])
    order = ["wrong", "crash", "refused", "warned", "not run", "absent"]
    titles = {"refused": "Refused", "warned": "Warned of", "absent": "Plain Keras cannot", "not run": "Not run"}
    items = sorted(by_words.items(), key=lambda item: order.index(item[0][0]))
    return "".join(f"- {titles.get(kind, kind)}: {_names(cells)}: {words}\n" for (kind, words), cells in items)


def _names(cells: Iterable[Sequence[str]]) -> str:
    """Returns the names of cells: rows that have the same columns and meshes in common are listed once."""
    meshes: dict[tuple[str, ...], list[str]] = {}
    for *rest, mesh in cells:
        meshes.setdefault(tuple(rest), []).append(mesh)
    by_row: dict[tuple[str, str], list[str]] = {}
    for (row, *column), where in meshes.items():
        on = "every mesh" if where == list(MESHES) else ", ".join(where)
        by_row.setdefault((row, on), []).append(" ".join(column))
    rows_of: dict[tuple[str, str], list[str]] = {}
    for (row, on), names in by_row.items():
        rows_of.setdefault(("; ".join(filter(None, names)), on), []).append(row)
    return "; ".join(
        f"{', '.join(found)} ({', '.join(filter(None, (columns, on)))})" for (columns, on), found in rows_of.items()
    )
