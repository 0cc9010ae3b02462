"""An extension of griffe: the conventions of our docstrings as Markdown.

An example is an indented block after a line that ends with a colon; if that line begins with "Example", the block is
Python. So is a block after a line that ends with two colons, which shows how something is written and cannot run by
itself. Shapes are a line of text. Roles such as :class:`Name` are code.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)(Example\b[^\n]*):\n\n((?:\1    [^\n]*\n|[^\S\n]*\n)+)", flags=re.MULTILINE)
_FRAGMENT = re.compile(r"^( *)(\S[^\n]*):: *\n\n((?:\1    [^\n]*\n|[^\S\n]*\n)+)", flags=re.MULTILINE)
_SHAPE = re.compile(r"^( *)((?:In|Out)put shape|Shapes):\n\1    (\S[^\n]*\n(?:\1    \S[^\n]*\n)*)", flags=re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_instance(self, *, node: Any, obj: griffe.Object, agent: Any, **kwargs: Any) -> None:
        """Rewrites the docstring of a class, a function, a module or an attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Lets an exported name be what the package imports, as in Python, not a module of the same name."""
        # Afterwards nothing has to be found by a path through the module: neither other names nor dataclasses.
        loader.resolve_aliases()
        griffe.DataclassesExtension().on_package(pkg=pkg)
        for name in map(str, pkg.exports or ()):
            found = pkg.members[name]
            # Names that other packages define are unresolved aliases here.
            known = not isinstance(found, griffe.Alias) or found.resolved
            if known and found.is_module and name in found.members:
                pkg.members[name] = griffe.Alias(name, found.members[name], parent=pkg)


def _as_markdown(text: str) -> str:
    text = _ROLE.sub(r"`\1`", f"{text}\n")
    text = _EXAMPLE.sub(lambda found: _fenced(found, f"**{found[2]}:**"), text)
    text = _FRAGMENT.sub(lambda found: _fenced(found, f"{found[2]}:"), text)
    return _SHAPE.sub(r"\1**\2:** \3", text).rstrip()


def _fenced(example: re.Match[str], title: str) -> str:
    indent, code = example[1], example[3]
    block = f"```python\n{textwrap.dedent(code).strip()}\n```"
    return f"{indent}{title}\n\n{textwrap.indent(block, indent)}\n\n"
