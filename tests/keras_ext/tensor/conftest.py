"""Selects the tests that run without `--parity-all`: all of them take ten minutes on two cores."""

import pytest

from tests.selecting import leave_listed_to_parity_all, leave_to_parity_all

# One mesh with replicas; where pieces are gathered also the widest.
LEFT_OUT_MESHES = ("tensor=2", "tensor=2,data=2")
WIDEST = "tensor=4"

# ResNet50, and variants, blocks and layers that other tests cover, too.
LEFT_OUT = (
    "test_attention.py::test_with_adam_and_global_clipnorm[data=2,tensor=2]",
    "test_channelwise.py::test_batch_normalization_of_a_whole_tensor[{'data': 2}]",
    "test_channelwise.py::test_batch_normalization_of_a_whole_tensor[{'tensor': 4}]",
    "test_channelwise.py::test_layers_without_weights[global]",
    "test_channelwise.py::test_layers_without_weights[nothing dropped]",
    "test_conv.py::test_groups[4]",
    "test_conv.py::TestParity::test_gathered_between[tensor=4]",
    "test_conv.py::TestParity::test_with_adam_and_global_clipnorm[data=2,tensor=2]",
    "test_custom_layers.py::test_parity[library-axes0]",
    "test_embedding.py::test_mixed_precision[reversible_model]",
    "test_embedding.py::test_optimizers[Adagrad]",
    "test_embedding.py::test_optimizers[Ftrl]",
    "test_embedding.py::test_optimizers[RMSprop, accumulation]",
    "test_embedding.py::test_optimizers[SGD, momentum, clipvalue]",
    "test_embedding.py::test_optimizers[SGD]",
    "test_files.py::test_goes_on_elsewhere[None-None]",
    "test_files.py::test_goes_on_elsewhere[None-{'tensor': 2}]",
    "test_files.py::test_goes_on_elsewhere[None-{'tensor': 4}]",
    "test_files.py::test_goes_on_elsewhere[{'data': 2, 'tensor': 4}-None]",
    "test_files.py::test_goes_on_elsewhere[{'data': 2, 'tensor': 4}-{'data': 2, 'tensor': 2}]",
    "test_files.py::test_goes_on_elsewhere[{'data': 2, 'tensor': 4}-{'tensor': 4}]",
    "test_files.py::test_goes_on_elsewhere[{'tensor': 2}-{'data': 2, 'tensor': 2}]",
    "test_files.py::test_goes_on_elsewhere[{'tensor': 2}-{'tensor': 2}]",
    "test_files.py::test_goes_on_elsewhere[{'tensor': 2}-None]",
    "test_parallelize.py::test_a_language_model_trains_alike[sequence_parallel=False]",
    "test_parallelize.py::test_a_language_model_trains_alike[sequence_parallel=True]",
    "test_parallelize.py::test_resnet50_trains_alike",
    "test_quantized.py::test_equals_the_whole_layers[tied-True-axes1]",
    "test_transformer.py::test_parity_of_kinds[decoder, normalized after]",
    "test_transformer.py::test_parity_of_kinds[encoder]",
    "test_transformer.py::test_parity_with_sequence_parallelism[data=2,tensor=2]",
)
IDS = frozenset(f"tests/keras_ext/tensor/{each}" for each in LEFT_OUT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, without the flag, meshes and arguments that resemble others."""
    seen: set[str] = set()

    def is_left_out(item: pytest.Item) -> bool:
        function = item.nodeid.split("[")[0]
        another_ran = function in seen
        seen.add(function)
        return _is_like_another(item, another_ran)

    leave_to_parity_all(config, items, is_left_out)
    leave_listed_to_parity_all(config, items, IDS)


def _is_like_another(item: pytest.Item, another_ran: bool) -> bool:
    if "tests/keras_ext/tensor" not in item.nodeid:
        return False
    variant = item.name.partition("[")[2].removesuffix("]")
    # One variant of the arguments stays.
    is_variant = item.name.startswith("test_arguments") and another_ran
    is_widest = variant == WIDEST and "test_gathered_between" not in item.nodeid
    return variant in LEFT_OUT_MESHES or is_widest or is_variant
