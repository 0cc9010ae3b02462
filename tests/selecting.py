"""Selection of the tests that run only with `--parity-all`."""

from collections.abc import Callable

import pytest


def leave_to_parity_all(
    config: pytest.Config, items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]
) -> None:
    """Deselects the tests for which `is_left_out` is true, unless the flag is given."""
    if config.getoption("--parity-all"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if is_left_out(item) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
