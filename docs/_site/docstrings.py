"""An extension of griffe: the conventions of our docstrings as Markdown.

An example is an indented block after a line that ends with a colon; if that line begins with "Example", the block is
Python. Roles such as :class:`Name` are code.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)(Example\b[^\n]*):\n\n((?:\1    [^\n]*\n|[^\S\n]*\n)+)", flags=re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_instance(self, *, node: Any, obj: griffe.Object, agent: Any, **kwargs: Any) -> None:
        """Rewrites the docstring of a class, a function, a module or an attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _as_markdown(obj.docstring.value)


def _as_markdown(text: str) -> str:
    return _EXAMPLE.sub(_fenced, _ROLE.sub(r"`\1`", f"{text}\n")).rstrip()


def _fenced(example: re.Match[str]) -> str:
    indent, title, code = example.groups()
    block = f"```python\n{textwrap.dedent(code).strip()}\n```"
    return f"{indent}**{title}:**\n\n{textwrap.indent(block, indent)}\n\n"
