"""Selection of the tests that run only with `--parity-all`."""

from collections.abc import Callable, Collection

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


def leave_listed_to_parity_all(config: pytest.Config, items: list[pytest.Item], listed: Collection[str]) -> None:
    """Deselects the tests with the listed ids, unless the flag is given.

    Raises:
        pytest.UsageError: a file of the list is collected whole, and does not have one of its tests.
    """
    found = {item.nodeid for item in items}
    files = {nodeid.partition("::")[0] for nodeid in found}
    if not any("::" in each for each in config.args):
        unknown = [each for each in listed if each not in found and each.partition("::")[0] in files]
        if unknown:
            raise pytest.UsageError(f"Listed as like others, but there are no such tests: {', '.join(unknown)}")
    leave_to_parity_all(config, items, lambda item: item.nodeid in listed)
