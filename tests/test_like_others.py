"""The list of tests that resemble others names tests that exist, and leaves them out without the flag."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import like_others

FIRST, SECOND = list(like_others._IDS)[:2]


def left(items: list[str], *args: str, parity_all: bool = False) -> list[str]:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(args=args, getoption=lambda _: parity_all, hook=hook)
    found: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in items]
    like_others.leave_out(config, found)
    return [item.nodeid for item in found]


def test_they_run_with_the_flag_only() -> None:
    assert left(["tests/test_a.py::test_b", FIRST], "tests/x.py::x") == ["tests/test_a.py::test_b"]
    assert left([FIRST], "tests/x.py::x", parity_all=True) == [FIRST]


def test_one_that_does_not_exist_is_named() -> None:
    other = f"{FIRST.partition('::')[0]}::test_of_another_name"
    with pytest.raises(pytest.UsageError, match=r"tests/like_others\.py names tests that do not exist: .*test_it_ends"):
        left([other], "tests")
