"""Lists of tests that resemble others name tests that exist, which run with the flag only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.selecting import leave_listed_to_parity_all

LISTED = "tests/test_c.py::test_of_one[a]"


def left(items: list[str], *args: str, parity_all: bool = False) -> list[str]:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(args=args, getoption=lambda _: parity_all, hook=hook)
    found: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in items]
    leave_listed_to_parity_all(config, found, {LISTED})
    return [item.nodeid for item in found]


def test_they_run_with_the_flag_only() -> None:
    assert left(["tests/test_a.py::test_b", LISTED], "tests/x.py::x") == ["tests/test_a.py::test_b"]
    assert left([LISTED], "tests/x.py::x", parity_all=True) == [LISTED]


def test_one_that_does_not_exist_is_named() -> None:
    with pytest.raises(pytest.UsageError, match=r"there are no such tests: tests/test_c\.py::test_of_one\[a\]"):
        left(["tests/test_c.py::test_of_one[b]"], "tests")
