"""The pages of the repository as data: their headings, links and blocks of code."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<marker>fragment|(?:run|compared) by \S+) -->\n\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        marker: the comment before it: "fragment", or the test that runs the block or compares it; "" without one.
        printed: the block that follows at once, if it has no language: the output of this one.
    """

    language: str
    code: str
    marker: str
    printed: str


def pages() -> list[str]:
    """Returns the paths of all pages: those that git has, or would add."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in set(names) if (ROOT / name).exists())


def text_of(page: str) -> str:
    """Returns the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    """Returns the fenced blocks of a page."""
    found = list(_BLOCK.finditer(text))
    made = []
    for number, block in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        follows = after is not None and not after["language"] and text[block.end() : after.start()] == "\n\n"
        printed = after["code"] if after is not None and follows else ""
        made.append(Block(block["language"], block["code"], block["marker"] or "", printed))
    return made


def prose(text: str) -> str:
    """Returns a page without its blocks of code."""
    return _BLOCK.sub("", text)


def links(text: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the anchor of each link to another page or within this one; "" stands for none."""
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", re.sub(r"`[^`\n]*`", "", prose(text))):
        if "://" not in path and not path.startswith("mailto:"):
            yield path, anchor


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page: those of headings, and of documented names on a page of the reference."""
    found = set(re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE))
    for heading in re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\s-]", "", shown.lower()).strip().replace(" ", "-"))
    return found
