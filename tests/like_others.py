"""Tests that resemble others, by what remains in `make test`; they run with `--parity-all`.

Further ones have a mark in their file, or are listed in the `conftest.py` of their folder. If you rename a test, pytest
says which lines of a list have to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PROCESSES = "strategies/processes/"

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
    "in one process, sharded weights are compared": (_PROCESSES + "comparisons.py::test_what_is_equal[weights]",),
    "other readers of surface/test_readers.py, or of the suite, read so": (
        _PROCESSES + "suite_data.py::TestReadingAhead::test_it_changes_nothing[PyDataset]",
        _PROCESSES + "suite_readers.py::test_a_reader[PyDataset, shuffled]",
        _PROCESSES + "suite_readers.py::test_a_stop[tf.data, repeated-Checkpoints(every_steps=2)]",
        "surface/test_readers.py::test_readers[data=3]",
        "surface/test_readers.py::test_readers[shard=optimizer]",
    ),
    "steps are counted so with another optimizer, or with metrics": (
        _PROCESSES + "suite_programs.py::TestPrograms::test_steps_are_counted_as_on_one_device[filtered-1-SGD-None]",
        _PROCESSES + "suite_programs.py::TestPrograms::test_steps_are_counted_as_on_one_device[filtered-3-SGD-None]",
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
        "keras_ext/test_sharded_embedding.py::test_the_numbers_of_the_plain_layer[adagrad-options1]",
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
}

IDS = frozenset(f"tests/{each}" for tests in LIKE_OTHERS.values() for each in tests)
