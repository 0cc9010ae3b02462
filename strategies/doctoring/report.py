"""The doctor's report: findings by section, problems with their remedies, and hints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Report:
    """The findings, printed immediately as text, or at the end as a line of JSON.

    Args:
        as_json: print JSON.
        rank: this process' rank; ranks other than 0 print only problems and one line about themselves.
    """

    def __init__(self, *, as_json: bool = False, rank: int = 0) -> None:
        self.found: dict[str, Any] = {"problems": [], "hints": []}
        self._as_json, self.rank = as_json, rank

    def section(self, title: str, values: Mapping[str, Any]) -> None:
        """Adds values by name under a title."""
        self.found[title.replace(" ", "_").replace("-", "_")] = dict(values)
        if self.rank == 0:
            self._print(title, *(f"  {name}: {words(value)}" for name, value in values.items()))

    def line(self, values: Mapping[str, Any]) -> None:
        """Adds the line that each rank prints about itself."""
        self.found.update(values)
        self._print(", ".join(f"{name} {words(value)}" for name, value in values.items()))

    def problem(self, text: str) -> None:
        """Adds a problem with its remedy."""
        self.found["problems"].append(text)
        self._print(f"PROBLEM: {text}")

    def hint(self, text: str) -> None:
        """Adds a recommendation, on rank 0 only."""
        if self.rank == 0:
            self.found["hints"].append(text)
            self._print(f"hint: {text}")

    def close(self) -> int:
        """Ends the report; returns the exit code."""
        count = len(self.found["problems"])
        if self._as_json:
            print(json.dumps(self.found), flush=True)
        elif self.rank == 0:
            self._print(f"{count} problem(s), see above." if count else "No problems found.")
        return int(count > 0)

    def _print(self, *lines: str) -> None:
        if not self._as_json:
            print("\n".join(lines), flush=True)


def words(value: Any) -> str:
    """Returns the text for a value."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name} {words(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
