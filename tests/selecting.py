"""Selection of the tests that run with `--parity-all` only."""

from collections.abc import Callable

import pytest


def leave_to_parity_all(
    config: pytest.Config, items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]
) -> None:
    """Takes some of the tests out, unless the flag is given; they are asked for one after the other."""
    if config.getoption("--parity-all"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if is_left_out(item) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
