"""Selection of the faults that run without `--parity-all`: each costs two processes and their start."""

import pytest

from tests.selecting import leave_to_parity_all


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, without the flag, the others."""

    def is_left_out(item: pytest.Item) -> bool:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        return case is not None and hasattr(case, "is_default") and not case.is_default

    leave_to_parity_all(config, items, is_left_out)
