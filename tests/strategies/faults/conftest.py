"""Selects the faults that run without `--parity-all`: each starts two processes."""

import pytest

from tests.selecting import leave_to_parity_all


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out all other faults without the flag."""

    def is_left_out(item: pytest.Item) -> bool:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        return case is not None and hasattr(case, "is_default") and not case.is_default

    leave_to_parity_all(config, items, is_left_out)
