"""Selects the tests of stages that run without `--parity-all`."""

import pytest

from tests.keras_ext.pipeline.test_parity import IN_ONE_REPLICA, SELDOM
from tests.selecting import leave_listed_to_parity_all, leave_to_parity_all

# One or two tests of each kind stay, and at least one for loops in stages and one for each mesh. A block of the
# language model and all of the GPT example run besides them.
LEFT_OUT = (
    "test_architectures.py::test_a_language_model_trains_alike[data=2,pipe=2,tensor=2]",
    "test_architectures.py::test_a_language_model_trains_alike[data=4,pipe=1,tensor=2]",
    "test_architectures.py::test_a_language_model_trains_alike[pipe=4,tensor=2]",
    "test_architectures.py::test_a_language_model_trains_alike[pipe=4]",
    "test_architectures.py::test_resnet50_equals_the_micro_batches_accumulated",
    "test_architectures.py::test_resnet50_with_frozen_statistics_equals_whole_batches",
    "test_losses.py::test_a_class_that_is_ignored[False-sum_over_batch_size]",
    "test_losses.py::test_a_class_that_is_ignored[True-mean_with_sample_weight]",
    "test_losses.py::test_masked_sequences[mean_with_sample_weight-pipe=2]",
    "test_losses.py::test_masked_sequences[sum-data=2,pipe=2]",
    "test_losses.py::test_masked_sequences[sum-pipe=2]",
    "test_losses.py::test_masked_sequences[sum_over_batch_size-data=2,pipe=2]",
    "test_losses.py::test_masked_sequences_with_weights_of_entries[mean_with_sample_weight]",
    "test_losses.py::test_masked_sequences_with_weights_of_entries[sum]",
    "test_measured_timeline.py::test_a_measured_step[1f1b]",
    "test_measured_timeline.py::test_a_measured_step[interleaved_1f1b]",
    "test_measured_timeline.py::test_a_measured_step[zb_v]",
    "test_model.py::test_parity_with_whole_batches[2 stages, 1f1b]",
    # To the bit, and in test_gradients.
    "test_model.py::test_parity_with_whole_batches[4 stages on 2 devices]",
    "test_model.py::test_parity_with_whole_batches[4 stages, gpipe]",
    "test_model.py::test_parity_with_whole_batches[4 stages, zb_h1]",
    "test_model.py::test_parity_with_whole_batches[convolutions]",
    "test_model.py::test_parity_with_whole_batches[masks]",
    # In the other cases, too, the last batch has fewer rows than micro-batches.
    "test_model.py::test_parity_with_whole_batches[more micro-batches than rows]",
    "test_model.py::test_parity_with_whole_batches[replicas]",
    "test_model.py::test_parity_with_whole_batches[stages that are functions]",
    "test_model.py::test_parity_with_whole_batches[v_half, loops and masks]",
    "test_model.py::test_parity_with_whole_batches[zb_h1, loops and masks]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[1-functions]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[1-in line]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[2 x 2-functions]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[2, 1f1b-in line]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[4, gpipe-functions]",
    # Split backward passes are functions, however many there are.
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[2 x 2, zb_v-in line]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[4, zb_h1-in line]",
    "test_model.py::test_to_the_bit_the_micro_batches_accumulated[4, gpipe-in line]",
    # Cut by measured times as well.
    "test_model.py::test_cuts_where_a_tensor_is_in_pieces[['down']]",
    "test_nested_models.py::test_a_task_is_cut_inside_its_backbone_and_trains_as_it_was_compiled"
    "[{'pipe': 2}-{'schedule': 'interleaved_1f1b'}]",
    "test_placement.py::test_by_a_profile_each_op_ran_on_the_device_of_its_stage[pipe=4, functions]",
    "test_placement.py::test_by_a_profile_each_op_ran_on_the_device_of_its_stage[pipe=4]",
    # Functions are tested on three stages, and operations in line on all axes.
    "test_placement.py::test_variables_slots_and_ops_are_on_the_device_of_their_stage[in line]",
    "test_placement.py::test_variables_slots_and_ops_are_in_their_replica_and_stage[pipe=4, functions]",
    "test_placement.py::test_variables_slots_and_ops_are_in_their_replica_and_stage[data=2,pipe=2,tensor=2, functions]",
    "test_placement.py::test_variables_slots_and_ops_are_in_their_replica_and_stage[pipe=4]",
    "test_remat.py::test_to_the_bit[normalizing-2-all_but_last]",
    "test_remat.py::test_to_the_bit[normalizing-2-one]",
    "test_remat.py::test_to_the_bit[recurrent-1-all_but_last]",
    "test_remat.py::test_to_the_bit[recurrent-1-one]",
    "test_remat.py::test_to_the_bit[recurrent-2-all]",
    "test_remat.py::test_to_the_bit[recurrent-2-all_but_last]",
    # One kind in line, and the other as functions.
    "test_rows.py::test_added_losses[as functions-data=2,pipe=2]",
    "test_rows.py::test_added_losses[as functions-pipe=2]",
    "test_rows.py::test_added_losses[in line-pipe=2]",
    "test_rows.py::test_tables_looked_up_by_positions[as functions-pipe=2]",
    "test_rows.py::test_tables_looked_up_by_positions[in line-data=2,pipe=2]",
    "test_rows.py::test_tables_looked_up_by_positions[in line-pipe=2]",
    "test_unusual.py::test_an_optional_input[in line]",
    "test_unusual.py::test_complex_tensors_between_stages[None]",
    "test_unusual.py::test_penalties_of_a_layer_that_is_called_in_two_stages_and_twice_in_one[None]",
)
IDS = frozenset(f"tests/keras_ext/pipeline/{each}" for each in LEFT_OUT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, without the flag, tests that take half a minute or longer, and tests that resemble others."""
    leave_listed_to_parity_all(config, items, IDS)
    leave_to_parity_all(config, items, _is_left_out)


def _is_left_out(item: pytest.Item) -> bool:
    if "keras_ext/pipeline" not in item.nodeid:
        return False
    callspec = getattr(item, "callspec", None)
    name = getattr(callspec.params.get("case"), "name", None) if callspec is not None else None
    # Each parity case runs on one of two meshes.
    is_other_mesh = name is not None and item.nodeid.endswith("-pipe=2]") != (name in IN_ONE_REPLICA)
    return is_other_mesh or name in SELDOM
