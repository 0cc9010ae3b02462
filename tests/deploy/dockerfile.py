"""A Dockerfile's instructions as values, and the files of its build context. Pure: standard library only.

As much of the format as the files in `deploy/docker` use: one stage, RUN in the shell form, COPY from the context.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KNOWN = ("FROM", "ENV", "RUN", "WORKDIR", "COPY", "CMD")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name, the rest of its lines as one text, and its first line's number."""

    name: str
    text: str
    line: int

    @property
    def words(self) -> list[str]:
        """The words of the text, as the shell splits them, or the items of a JSON list."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of ENV."""
        pairs = [word.partition("=") for word in self.words]
        return {name: value for name, _, value in pairs}


def parse(text: str) -> list[Instruction]:
    """Returns the instructions of a Dockerfile.

    Raises:
        ValueError: an instruction outside of `KNOWN`, or a use of it that is not supported here.
    """
    found: list[Instruction] = []
    for line, joined in _joined_lines(text):
        name, _, rest = joined.partition(" ")
        instruction = Instruction(name, rest.strip(), line)
        is_known = name in KNOWN and instruction.text
        if not is_known or (name == "COPY" and instruction.text.startswith("-")) or re.search(r"<<\w", joined):
            raise ValueError(f"line {line}: expected one of {', '.join(KNOWN)}, without options. Received: {joined!r}")
        if name == "FROM" and found:
            raise ValueError(f"line {line}: one FROM, as the first instruction, is supported. Received: {joined!r}")
        found.append(instruction)
    if not found or found[0].name != "FROM":
        raise ValueError("A Dockerfile begins with FROM.")
    return found


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each instruction with its continuation lines, without comments, as (line number, text)."""
    parts: list[str] = []
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        begin = begin if parts else number
        parts.append(line.rstrip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            yield begin, " ".join(parts)
            parts = []


def context_files(root: Path, ignore: str) -> list[PurePosixPath]:
    """Returns the files of the build context at `root` under the lines of a .dockerignore; the last match wins."""
    rules = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    top = [path for path in sorted(root.iterdir()) if _is_included(PurePosixPath(path.name), rules)]
    files = [file for path in top for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    relative = [PurePosixPath(file.relative_to(root).as_posix()) for file in files if file.is_file()]
    return [path for path in relative if _is_included(path, rules)]


def _is_included(path: PurePosixPath, rules: Sequence[str]) -> bool:
    included = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        anywhere = pattern.removeprefix("**/")
        names = path.parts if anywhere != pattern else path.parts[:1]
        # A rule for a folder holds for all below it.
        if any(fnmatch.fnmatch(name, anywhere) for name in names):
            included = rule.startswith("!")
    return included
