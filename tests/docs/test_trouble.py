"""The page on messages quotes them as they are printed: a message that changes fails here until the page follows."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from tests.docs.messages import ROOT, classes, is_printed, strings

PAGE = (Path(__file__).parents[2] / "docs" / "trouble.md").read_text(encoding="utf-8")
TOPICS = PAGE.split("\n## ")[1:]
#: Blank lines separate the messages of a block; a message begins with the class of its error, if it is one.
QUOTES = [
    " ".join(quote.split())
    for block in re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for quote in re.split(r"\n\s*\n", block)
]


def _parts(quote: str) -> tuple[str | None, str]:
    """Returns the class of the error, or None, and the message without the name of the program that prints it."""
    named = re.match(r"(\w+(?:Error|Warning)): ", quote)
    rest = quote[named.end() :] if named else quote
    return named[1] if named else None, re.sub(r"^strategies(\.\w+)?: ", "", rest)


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: quote[:60])
def test_the_message_is_printed(quote: str) -> None:
    kind, text = _parts(quote)
    assert len(text.replace("…", "").strip()) >= 20, "too little of the message to find it"
    assert is_printed(text)
    assert kind is None or hasattr(builtins, kind) or kind in _own_errors()
    # A message that is put together elsewhere has no class here.
    assert kind is None or not classes(text) or kind in classes(text)


def _own_errors() -> set[str]:
    """Returns the names of the classes of the product that end like an error's."""
    return {
        node.name
        for package in ("strategies", "keras_ext")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Warning"))
    }


def test_no_message_is_quoted_twice() -> None:
    assert len(set(QUOTES)) == len(QUOTES)
    assert len(QUOTES) >= 60


def test_each_message_has_an_explanation() -> None:
    for block, rest in re.findall(r"^```text\n(.*?)^```\n(.*?)(?=^```text|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE):
        assert len(rest.strip()) > 40, block


def test_the_index_has_all_topics() -> None:
    titles = [topic.splitlines()[0] for topic in TOPICS]
    listed = re.findall(r"^- \[([^]]+)\]\(#([^)]+)\)", PAGE, flags=re.MULTILINE)
    assert [title for title, _ in listed] == titles
    for title, anchor in listed:
        assert anchor == re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_strings_of_a_module() -> None:
    source = """
raise ValueError(f"{a} of {b!r} is wrong. " + FIX.format(c) + "Received: {received}")
_logger.warning("%d of %s took %.0f %% of %s", 1, 2, 3, 4)
x = {"key": ("one "
    "two", 'three')}
"""
    expected = ["… of … is wrong. …Received: …", "… of … took … % of …", "key", "one two", "three"]
    assert list(strings(ast.parse(source))) == expected
