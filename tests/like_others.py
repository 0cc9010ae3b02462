"""Tests that resemble others, by what remains in `make test`; they run with `--parity-all`.

Further ones have a mark in their file, or are in the `conftest.py` of their folder. If you rename a test, pytest says
which lines of this list have to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.selecting import leave_to_parity_all

_PROCESSES = "strategies/processes/"
_HOOKS = "strategies/_keras_hooks/"

#: For each reason the tests, below the folder of this file.
LIKE_OTHERS: Mapping[str, Sequence[str]] = {
    "the other engine runs it, or the same engine at another moment": (
        "strategies/faults/test_faults.py::test_it_ends_on_all_ranks[evaluate-MultiWorkerMirroredStrategy]",
        "strategies/faults/test_faults.py::test_it_ends_on_all_ranks[terminate at step-HorovodStrategy]",
        "strategies/faults/test_faults.py::test_killed_in_a_save_of_shards_it_goes_on"
        "[MultiWorkerMirroredStrategy-weights-whole]",
        "strategies/monitoring/test_training.py::test_a_training[MultiWorkerMirroredStrategy]",
        "strategies/tracing/test_recording.py::test_recording_changes_nothing[MultiWorkerMirroredStrategy-hosts]",
    ),
    "experts of two processes of two devices have all-to-alls between both; Horovod's are in the collectives' tests": (
        _PROCESSES + "test_experts.py::test_experts_and_tables_across_processes[HorovodStrategy-2-1-[{'expert': 2}]]",
    ),
    "all ranks, a folder and model.keras go the same way to rank 0": (
        _PROCESSES + "suite_files.py::TestFiles::test_gathered_gradients_are_saved_whole[rank 0]",
        _PROCESSES + "suite_files.py::TestFiles::test_one_writes_and_all_can_read[model.h5]",
        _PROCESSES + "suite_files.py::TestFiles::test_one_writes_and_all_can_read[model.weights.h5]",
        _PROCESSES + "suite_files.py::TestFiles::test_what_is_saved_is_read_at_once[model.h5]",
        _PROCESSES + "suite_files.py::TestFiles::test_what_is_saved_is_read_at_once[model.weights.h5]",
    ),
    "stages or shards run each treatment of gradients": (
        _PROCESSES + "spanning_optimizers.py::test_optimizers_of_stages[scaled]",
        _PROCESSES + "spanning_optimizers.py::test_optimizers_of_shards[gathered]",
        _PROCESSES + "spanning_optimizers.py::test_optimizers_of_shards[MultiOptimizer]",
        _PROCESSES + "spanning_optimizers.py::test_a_process_without_trainable_weights[gathered]",
    ),
    "weights in shards are parts of weights, those of stages are whole: where only the owner matters, shards run it": (
        _PROCESSES + "spanning_files.py::TestArrays::test_a_model_made_outside_of_the_scope_is_that_of_rank_0[pipe]",
        _PROCESSES + "spanning_files.py::TestArrays::test_memory_is_shown_by_rank[pipe]",
        _PROCESSES + "spanning_files.py::TestFiles::test_adapters_are_merged_as_keras_merges_them[pipe]",
        _PROCESSES + "spanning_files.py::TestFiles::test_an_error_in_the_middle_of_a_weight_leaves_nobody_waiting"
        "[read-pipe]",
        _PROCESSES
        + "spanning_files.py::TestFiles::test_an_error_of_rank_0_is_everybodys_and_leaves_the_old_file[pipe]",
        _PROCESSES + "spanning_files.py::TestFiles::test_each_rank_reads_its_part_and_no_weight_is_held_whole[pipe]",
        _PROCESSES + "spanning_files.py::TestFiles::test_the_bytes_are_those_of_whole_arrays[model.weights.h5-pipe]",
        _PROCESSES + "spanning_files.py::TestFiles::test_they_are_ordinary_ones[a folder-pipe]",
        _PROCESSES + "spanning_files.py::TestFiles::test_they_are_ordinary_ones[model.weights.h5-pipe]",
    ),
    "between processes stages, in one process sharded weights are compared": (
        _PROCESSES + "comparisons.py::test_what_is_equal[weights]",
        _HOOKS + "test_comparisons.py::test_what_is_equal_is_found_equal_and_left_as_it_was[in stages]",
        _HOOKS + "test_comparisons.py::test_deliberate_faults_are_named[data-a layer's loss averages]",
    ),
    "surface/test_readers.py reads so in one process, and the other readers between processes": (
        _PROCESSES + "suite_data.py::TestReadingAhead::test_it_changes_nothing[PyDataset]",
        _PROCESSES + "suite_readers.py::test_a_reader[PyDataset, shuffled]",
        _PROCESSES + "suite_readers.py::test_a_stop[tf.data, repeated-Checkpoints(every_steps=2)]",
        _HOOKS + "test_inputs.py::test_fit_equals_one_device[arrays]",
        _HOOKS + "test_inputs.py::test_fit_equals_one_device[steps]",
        "surface/test_readers.py::test_readers[data=3]",
        "surface/test_readers.py::test_readers[shard=optimizer]",
    ),
    "counts of steps that a step without metrics, or another optimizer, has as well": (
        _PROCESSES + "suite_programs.py::TestPrograms::test_steps_are_counted_as_on_one_device[filtered-1-SGD-None]",
        _PROCESSES + "suite_programs.py::TestPrograms::test_steps_are_counted_as_on_one_device[filtered-3-SGD-None]",
        _HOOKS + "test_trainer.py::test_steps_are_counted_as_on_one_device[Adam-2-False]",
        _HOOKS + "test_trainer.py::test_steps_are_counted_as_on_one_device[Adam-None-False]",
        _HOOKS + "test_trainer.py::test_models_that_cannot_be_called_on_the_inputs_are_built_by_their_first_step"
        "[Siamese-False]",
        _HOOKS + "test_trainer.py::test_models_that_cannot_be_called_on_the_inputs_are_built_by_their_first_step"
        "[WithoutCall-True]",
        _HOOKS + "test_distributed_models.py::test_calls_of_keras_model_in_place_of_super[ExplicitEntries-False]",
        _HOOKS + "test_compiled_steps.py::test_one_replica_is_compiled_whole_as_by_keras[CPU:0-1]",
    ),
    "surface/test_callbacks.py compares the class with one device": (
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[BackupAndRestore]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[CSVLogger]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[EarlyStopping]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[ModelCheckpoint]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[ReduceLROnPlateau]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[SwapEMAWeights]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[TensorBoard]",
        _HOOKS + "test_callbacks.py::test_does_what_it_does_on_one_device[TerminateOnNaN]",
    ),
    "a replica in stages, or as scalars, has such losses": (
        _HOOKS + "test_gathered_functions.py::test_they_are_those_of_one_device[per row]",
        _HOOKS + "test_kinds.py::test_layers_that_mix_rows_are_said_and_found[centres]",
        _HOOKS + "test_kinds.py::test_layers_that_mix_rows_are_said_and_found[reverses]",
        _HOOKS + "test_kinds.py::test_layers_that_mix_rows_are_said_and_found[rolls]",
    ),
    "another backbone, method or mesh of the grid contains what it adds": (
        "hub/test_backbones.py::test_equals_plain_keras[LlamaBackbone-tensor=4]",
        "hub/test_experts.py::test_equals_the_dense_banks[MixtralBackbone]",
        "hub/test_finetuning.py::test_equals_plain_keras[GPT2-QLoRA-pipe=2]",
        "hub/test_lora.py::test_equals_plain_keras[BertBackbone-pipe=2]",
        "surface/test_callbacks.py::test_equals_one_device[TensorBoard-shard=weights]",
    ),
    "files written by one number of replicas and read by another, once for each format": (
        "keras_ext/checkpoints/test_callback.py::test_goes_on_as_if_nothing_had_happened[0]",
        "keras_ext/checkpoints/test_commits.py::test_goes_on[9]",
        "keras_ext/tensor/test_files.py::test_goes_on_elsewhere[{'tensor': 2}-None]",
        "strategies/parity/test_sharded.py::test_equals_one_device[Mirrored, 4 devices, by 2, weights: "
        "whole weights saved, loaded, gone on]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[1-2-.keras]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[1-2-.weights.h5]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[2-1-.weights.h5]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[2-1-tf.train.Checkpoint]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[2-2-.keras]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[2-2-.weights.h5]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[2-4-.keras]",
        "strategies/saving/test_saving.py::test_trains_on_after_loading[2-4-tf.train.Checkpoint]",
    ),
    "the case with accumulation, averages and clipping contains the optimizer": (
        "keras_ext/expert/test_data_parallel.py::test_equals_plain_keras[bias]",
        "keras_ext/expert/test_tensor_axis.py::test_the_numbers_of_one_device[{'data': 2, 'tensor': 2}-adam-{}]",
        "keras_ext/pipeline/test_parity.py::test_equals_one_device"
        "[LossScaleOptimizer, gradients left in accumulation-data=2,pipe=2]",
        "keras_ext/tensor/test_attention.py::test_with_adam_and_global_clipnorm[data=2,tensor=2]",
        "keras_ext/tensor/test_conv.py::TestParity::test_with_adam_and_global_clipnorm[data=2,tensor=2]",
        "keras_ext/tensor/test_embedding.py::test_optimizers[RMSprop, accumulation]",
        "keras_ext/test_sharded_embedding.py::test_the_numbers_of_the_plain_layer[adagrad-options1]",
        "strategies/parity/test_central.py::test_equals_one_device[2 compute devices: Adam]",
        "strategies/parity/test_sharded.py::test_equals_one_device[Mirrored, 3 devices: Adam, EMA with overwrite]",
    ),
    "the same layer, split or in stages, in another case": (
        "keras_ext/pipeline/test_losses.py::test_a_class_that_is_ignored[False-mean_with_sample_weight]",
        "keras_ext/pipeline/test_losses.py::test_masked_sequences[sum_over_batch_size-pipe=2]",
        "keras_ext/pipeline/test_model.py::test_parity_with_whole_batches[4 stages, zb_h1]",
        "keras_ext/pipeline/test_nested_models.py::test_a_task_is_cut_inside_its_backbone_and_trains_as_it_was_compiled"
        "[{'pipe': 2}-{'schedule': 'interleaved_1f1b'}]",
        "keras_ext/pipeline/test_remat.py::test_to_the_bit[normalizing-2-one]",
        "keras_ext/pipeline/test_unusual.py::test_complex_tensors_between_stages[None]",
        "keras_ext/tensor/test_conv.py::TestParity::test_gathered_between[tensor=4]",
        "keras_ext/tensor/test_quantized.py::test_equals_the_whole_layers[tied-True-axes1]",
        "keras_ext/tensor/test_transformer.py::test_parity_with_sequence_parallelism[data=2,tensor=2]",
    ),
    "the mesh with all axes contains it": (
        "examples/test_gpt_train.py::test_every_mesh_gives_the_loss_curve_of_one_device[pipe=2]",
        "examples/test_mnist_train.py::test_several_devices_give_the_curve_of_one[3]",
        "keras_ext/test_memory_plan.py::test_experts_are_divided_and_so_are_the_slots_of_all_weights"
        "[{'expert': 2}-None]",
        "keras_ext/test_memory_plan.py::test_experts_are_divided_and_so_are_the_slots_of_all_weights"
        "[{'expert': 2}-weights]",
        "keras_ext/test_memory_plan.py::test_a_plan_is_what_is_reported[None-None-Adam]",
        "keras_ext/test_memory_plan.py::test_a_plan_is_what_is_reported[None-None-SGD, momentum]",
        "keras_ext/test_memory_plan.py::test_a_plan_is_what_is_reported[optimizer-None-Adam]",
        "keras_ext/test_memory_plan.py::test_a_plan_is_what_is_reported[optimizer-None-SGD, momentum]",
        "strategies/replica/test_graph_lifetimes.py::test_models_split_in_any_way_leave_no_graph[optimizer]",
        "strategies/replica/test_graph_lifetimes.py::test_models_that_were_trained_and_dropped_leave_no_graph[1]",
        "strategies/steps/test_first_replica.py::test_graph_is_that_of_traced_replicas[gradients-None]",
        "strategies/steps/test_waiting.py::test_watching_changes_no_number"
        "[{'data': 2}-{'gradient_accumulation_steps': 2}]",
        "strategies/steps/test_waiting.py::test_watching_changes_no_number[{'data': 2, 'pipe': 2}-{}]",
    ),
    "test_compiled_steps.py compares with XLA": (
        "strategies/parity/test_parity.py::test_equals_one_device[Mirrored, 2 devices: "
        "jit_compile=True, global_clipnorm, validation_data]",
    ),
    "metrics are summed by the same code under MirroredStrategy": (
        "strategies/parity/test_central.py::test_equals_one_device[2 compute devices: "
        "AUC, Precision, Recall, F1 and other counts]",
    ),
}

_IDS = {f"tests/{each}": reason for reason, tests in LIKE_OTHERS.items() for each in tests}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of the list, unless ``--parity-all`` is given.

    Raises:
        pytest.UsageError: a file of the list is collected whole, and does not have one of its tests.
    """
    found = {item.nodeid for item in items}
    files = {nodeid.partition("::")[0] for nodeid in found}
    if not any("::" in each for each in config.args):
        unknown = [each for each in _IDS if each not in found and each.partition("::")[0] in files]
        if unknown:
            raise pytest.UsageError(f"tests/like_others.py names tests that do not exist: {', '.join(unknown)}")
    leave_to_parity_all(config, items, lambda item: item.nodeid in _IDS)
