"""Selection of the tests that run without `--parity-all`: with it, they take four minutes more on two cores."""

import pytest

from tests.keras_ext.pipeline.test_parity import IN_ONE_REPLICA, SELDOM
from tests.selecting import leave_to_parity_all

# Beside these run ResNet50 with micro-batches accumulated, a block of the language model on the first of these meshes,
# and all of the GPT example; and of each kind of loop in stages one.
LEFT_OUT = (
    "test_architectures.py::test_resnet50_with_frozen_statistics_equals_whole_batches",
    "test_architectures.py::test_a_language_model_trains_alike[data=2,pipe=2,tensor=2]",
    "test_architectures.py::test_a_language_model_trains_alike[pipe=4,tensor=2]",
    "test_architectures.py::test_a_language_model_trains_alike[data=4,pipe=1,tensor=2]",
    "test_architectures.py::test_a_language_model_trains_alike[pipe=4]",
    "test_losses.py::test_masked_sequences[sum_over_batch_size-data=2,pipe=2]",
    "test_model.py::test_parity_with_whole_batches[2 stages, 1f1b]",
    "test_model.py::test_parity_with_whole_batches[masks]",
    "test_model.py::test_parity_with_whole_batches[replicas]",
    "test_placement.py::test_by_a_profile_each_op_ran_on_the_device_of_its_stage[pipe=4]",
    "test_remat.py::test_to_the_bit[recurrent-one]",
    "test_remat.py::test_to_the_bit[recurrent-all_but_last]",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, without the flag, what takes half a minute and longer, and what is like others."""
    leave_to_parity_all(config, items, _is_left_out)


def _is_left_out(item: pytest.Item) -> bool:
    if "keras_ext/pipeline" not in item.nodeid:
        return False
    callspec = getattr(item, "callspec", None)
    name = getattr(callspec.params.get("case"), "name", None) if callspec is not None else None
    # Of parity, each case on one of two meshes.
    is_other_mesh = name is not None and item.nodeid.endswith("-pipe=2]") != (name in IN_ONE_REPLICA)
    return is_other_mesh or item.nodeid.endswith(LEFT_OUT) or name in SELDOM
