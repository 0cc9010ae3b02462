"""Runs the code cells of a notebook in this process, as Jupyter does, and prints what it would show.

    python tests/examples/run_notebook.py NOTEBOOK

A traceback names the cell and its line.
"""

from __future__ import annotations

import ast
import json
import linecache
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any


def code_cells(path: Path) -> list[tuple[str, str]]:
    """Returns the code cells of a notebook, each with its id."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell["id"], "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]


def run(path: Path) -> None:
    """Runs the code cells in order; shows the value of a last expression, and the seconds of each cell."""
    # Objects that are defined in cells are found by pickle and inspect as in Jupyter, in the main module.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    for cell, source in code_cells(path):
        began = time.monotonic()
        name = f"{path.name}:{cell}"
        # Keras and TensorFlow read the sources of functions, which no file has.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), module.__dict__)
        if isinstance(last, ast.Expr):
            _show(eval(compile(ast.Expression(last.value), name, "eval"), module.__dict__))
        print(f"[{cell}: {time.monotonic() - began:.1f} s]", flush=True)


def _show(value: Any) -> None:
    if hasattr(value, "_repr_svg_"):
        picture = value._repr_svg_()
        assert picture.startswith("<svg")
        print(f"(a picture of {len(picture)} characters)")
    elif value is not None:
        print(repr(value))


if __name__ == "__main__":
    # As in pyproject.toml, with the same exception.
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword", DeprecationWarning)
    run(Path(sys.argv[1]))
