"""Every link of every page leads somewhere, every command of `make` exists, every fragment names what exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, anchors, blocks, links, pages, prose, text_of

PAGES = pages()
#: What fragments may use without an import.
_MODULES = {
    "faults": "strategies.testing.faults",
    "keras": "keras",
    "keras_ext": "keras_ext",
    "strategies": "strategies",
    "tf": "tensorflow",
}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    wrong = []
    for path, anchor in links(text_of(page)):
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists():
            wrong.append(path)
        elif anchor and not _has(target, anchor):
            wrong.append(f"{path}#{anchor}")
    assert not wrong


def _has(page: Path, anchor: str) -> bool:
    found = anchors(page.read_text(encoding="utf-8"))
    # A page of the reference has the members of a class, too.
    return anchor in found or any("." in name and anchor.startswith(f"{name}.") for name in found)


def test_a_list_has_an_empty_line_before_it() -> None:
    """Otherwise the site shows it as a part of the paragraph before it."""
    item = re.compile(r" *([-*]|\d+\.) ")
    wrong = []
    for page in PAGES:
        for paragraph in re.split(r"\n\s*\n", prose(text_of(page))):
            first, *others = paragraph.strip("\n").split("\n")
            wrong += [f"{page}: {line}" for line in others if item.match(line) and not item.match(first)]
    assert not wrong


def test_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^make ([a-z-]+)", text_of(page), flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{page}: make {target}"


def test_every_block_of_python_has_a_test() -> None:
    """Blocks run in `test_snippets.py`; the others name the test that runs or compares them, or are fragments."""
    wrong = []
    for page in PAGES:
        for block in blocks(text_of(page)):
            if block.marker and block.marker != "fragment":
                test = ROOT / block.marker.split(" by ")[1]
                if not test.is_file() or Path(page).name not in test.read_text(encoding="utf-8"):
                    wrong.append(f"{page}: {block.marker}")
    assert not wrong


FRAGMENTS = {
    f"{page} {number}": block.code
    for page in PAGES
    for number, block in enumerate(blocks(text_of(page)))
    if block.marker == "fragment"
}


@pytest.mark.parametrize("code", FRAGMENTS.values(), ids=FRAGMENTS)
def test_a_fragment_uses_names_and_arguments_that_exist(code: str) -> None:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            _value_of(node)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = _value_of(call.func)
        if callable(function) and not any(keyword.arg is None for keyword in call.keywords):
            named = {str(keyword.arg): None for keyword in call.keywords}
            inspect.signature(function).bind(*call.args, **named)


def _value_of(node: ast.expr) -> Any:
    """Returns what an expression such as `strategies.elastic.run` names; None if it is of the program."""
    if isinstance(node, ast.Name):
        return importlib.import_module(_MODULES[node.id]) if node.id in _MODULES else None
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value)
        return None if owner is None else getattr(owner, node.attr)
    return None
