"""What runs by itself, and what with `--parity-all` only: all of it takes ten minutes on two cores."""

import pytest

# Of the meshes, the widest and one with replicas.
LEFT_OUT_MESHES = ("tensor=2", "tensor=2,data=2")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, without the flag, meshes and arguments beside which similar ones run."""
    if config.getoption("--parity-all"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    seen: set[str] = set()
    for item in items:
        function = item.nodeid.split("[")[0]
        (left_out if _is_like_another(item, function in seen) else kept).append(item)
        seen.add(function)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _is_like_another(item: pytest.Item, another_ran: bool) -> bool:
    if "tests/keras_ext/tensor" not in item.nodeid:
        return False
    variant = item.name.partition("[")[2].removesuffix("]")
    # One of the arguments' variants stays.
    is_variant = item.name.startswith("test_arguments") and another_ran
    # Grouped queries share all but the shapes of projections.
    is_grouped_call = item.name.startswith("test_calls") and variant.endswith("grouped") and "causal" not in variant
    return variant in LEFT_OUT_MESHES or is_variant or is_grouped_call
