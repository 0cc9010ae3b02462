"""The messages in the sources of the product, read without running them; placeholders are written as "…"."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACEHOLDER = "…"
#: The placeholders of str.format and of logging; "%%" is a percent sign.
_NAMED = re.compile(r"\{[a-z_]*(?:![rs])?(?::[^{}]*)?\}")
_PERCENT = re.compile(r"%[-+0-9.]*[sdrfgi]")


@functools.cache
def messages() -> frozenset[str]:
    """Returns all strings in the modules of `strategies` and `keras_ext` that may be messages, or parts of them."""
    found = set[str]()
    for package in ("strategies", "keras_ext"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found.update(strings(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(found)


@functools.cache
def raised() -> frozenset[tuple[str, str]]:
    """Returns the messages that stand in a `raise` statement, each with the name of its class."""
    found = set[tuple[str, str]]()
    for package in ("strategies", "keras_ext"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = ast.unparse(node.exc.func).rpartition(".")[2]
                    found.update((name, text) for argument in node.exc.args for text in strings(argument))
                    found.update((name, " ".join(text.split())) for text in map(_text, node.exc.args) if text)
    return frozenset(found)


def strings(tree: ast.AST) -> Iterator[str]:
    """Yields the strings of a module, longest first where one contains another; docstrings are strings, too."""
    for node in ast.iter_child_nodes(tree):
        text = _text(node)
        if text is None:
            yield from strings(node)
        else:
            yield " ".join(text.split())


def _text(node: ast.AST) -> str | None:
    """Returns the text of an expression that is a string or a sum of strings; else None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _PERCENT.sub(PLACEHOLDER, _NAMED.sub(PLACEHOLDER, node.value)).replace("%%", "%")
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_text(side) for side in (node.left, node.right)]
        if any(side is not None for side in sides):
            return "".join(PLACEHOLDER if side is None else side for side in sides)
    return None


def is_printed(quote: str) -> bool:
    """Returns True if a message contains the quote, in which "…" stands for any text."""
    pattern = _pattern(quote)
    return any(pattern.search(message) for message in messages())


def classes(quote: str) -> set[str]:
    """Returns the classes of the errors that are raised with such a message where it is written."""
    pattern = _pattern(quote)
    return {name for name, message in raised() if pattern.search(message)}


def _pattern(quote: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in map(str.strip, quote.split(PLACEHOLDER)) if piece))
