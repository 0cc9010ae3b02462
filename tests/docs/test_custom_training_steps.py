"""The table of `custom_training_steps.md`: each row has tests of equality with one device, or of the warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies.parity.cases import ALL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "custom_training_steps.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]

_HOOKS, _STEPS = "tests/strategies/_keras_hooks", "tests/strategies/steps"
#: Parity cases, and tests as "file::function", by the beginning of a row.
TESTS: dict[str, tuple[str, ...]] = {
    "`tape.gradient(loss, weights)`": (
        "clip_by_norm in train_step",
        "tf.gradients",
        "output_gradients",
        "norm of gradients in the loss",
    ),
    "gradients that are clipped": (
        "clip_by_global_norm in train_step",
        "weight decay in train_step, steps_per_execution=2",
        "projected gradients of two losses",
        "gradients divided by their norms",
        "gradients with seeded noise",
    ),
    "an optimizer that overrides": (
        "optimizer that overrides apply_gradients",
        "optimizer that overrides apply",
        "custom loop, optimizer that overrides apply",
        f"{_HOOKS}/test_joint_gradients.py::test_joint_ones_are_refused",
    ),
    "`variable.assign_sub(0.1 * gradient)`": (
        "assign_sub by hand",
        "sharpness-aware minimization",
        "gradient through a step of descent",
    ),
    "`tape.gradient(loss, inputs)`": ("fast gradient sign", "gradients of rows, clipped"),
    "`optimizer.apply_gradients(...)`": (
        "gradient without a tape",
        f"{_HOOKS}/test_gradients.py::test_a_gradient_of_the_replica_alone_is_reported",
    ),
    "`tf.cond(...": (
        "gradients gathered by hand, tf.cond around apply_gradients",
        f"{_HOOKS}/test_gradients.py::test_a_branch_cannot_apply_gradients_in_shards",
    ),
    "a loss that is a mean over rows": ("losses averaged by hand in train_step", "custom train_step with compute_loss"),
    "a loss that is a sum over rows": ("losses summed by hand in train_step", "custom train_step with a loss per row"),
    "a sum over rows divided by a constant": ("sum over rows divided by the size of the global batch",),
    "terms of these kinds": ("losses that layers add, of each kind",),
    "any other loss in a step": (
        f"{_HOOKS}/test_losses.py::test_what_is_neither_is_warned_of_once_with_its_line",
        "SimCLR, gather_rows",
        "SupCon, gather_rows",
    ),
    "a loss or metric function given to `compile`": (
        "loss function that is a root; F1, largest error and ranks as metrics",
        "loss function that weighs rows by the batch",
        "contrastive loss function",
        f"{_HOOKS}/test_gathered_functions.py::test_they_are_those_of_one_device",
    ),
    "such a loss in a pipeline": (
        f"{_HOOKS}/test_gathered_functions.py::test_in_pipelines_that_have_all_rows_before_the_backward_pass",
        f"{_HOOKS}/test_gathered_functions.py::test_in_micro_batches_the_way_out_is_reported",
    ),
    "`metric.update_state(value)`": ("trackers of means, sums and rows",),
    "a log that is a mean": ("logs of each kind",),
    "a log that is a root": (f"{_HOOKS}/test_kinds.py::test_what_cannot_be_put_together_is_reported",),
    "`variable.assign(...)`": ("state of each kind that a layer keeps", "VQ-VAE, codebook of moving averages"),
    "a variable made with": ("state of each kind that a layer keeps",),
    "a variable that is set to rows": (
        f"{_STEPS}/test_state_writes.py::test_what_cannot_be_combined_is_reported_at_its_line",
        "queue of rows, gather_rows",
    ),
    "a metric class of your own": (
        "loss function that is a root; F1, largest error and ranks as metrics",
        f"{_STEPS}/test_state_writes.py::test_state_of_metrics_that_is_no_sum_is_reported",
    ),
    "a `tf.Variable` that was made outside": (
        f"{_HOOKS}/test_outside.py::test_they_are_warned_of_where_they_are_written",
    ),
    "a layer that mixes rows": (
        f"{_HOOKS}/test_kinds.py::test_layers_that_mix_rows_are_said_and_found",
        "minibatch standard deviation, gather_rows",
    ),
    "`keras.random.normal(ops.shape(x), seed=7)`": ("keras.random with ints for seeds",),
    "`keras.random.normal(shape, seed=generator)`": (
        f"{_HOOKS}/test_kinds.py::test_random_numbers_are_those_of_one_device",
    ),
    "`tf.random.normal(shape)`": (f"{_HOOKS}/test_kinds.py::test_random_numbers_of_tensorflow",),
    "`BatchNormalization()`": (
        "BatchNormalization(synchronized=True)",
        f"{_HOOKS}/test_synchronized_norms.py::test_micro_batches_of_a_synchronized_layer_are_warned_of_once_at_the_line_of_the_program",
    ),
    "`context.all_reduce": (f"{_HOOKS}/test_gradients.py::test_a_sum_of_what_is_global_is_reported",),
    "numbers of all variables of a model": (
        f"{_HOOKS}/test_numbers_of_shards.py::test_numbers_of_all_shards_are_those_of_one_device",
    ),
    "a norm, a mean or another number": (
        f"{_HOOKS}/test_gradients.py::test_a_norm_of_a_shard_is_reported",
        f"{_HOOKS}/test_numbers_of_shards.py::test_each_use_of_a_number_of_one_shard_is_reported",
        f"{_HOOKS}/test_numbers_of_shards.py::test_numbers_of_a_replicas_own_experts_are_reported",
    ),
    "`model.trainable_variables[:2]`": (
        f"{_HOOKS}/test_gradients.py::test_layers_that_are_split_have_optimizers_of_their_own",
    ),
}


def test_the_page_has_a_table() -> None:
    assert len(ROWS) > 20
    assert {len(row) for row in ROWS} == {2}


@pytest.mark.parametrize("row", [row[0] for row in ROWS])
def test_each_row_has_its_tests(row: str) -> None:
    (tests,) = [found for beginning, found in TESTS.items() if row.startswith(beginning)]
    for test in tests:
        path, _, function = test.partition("::")
        if function:
            assert f"def {function}(" in (ROOT / path).read_text()
        else:
            assert test in ALL


def test_no_test_is_named_for_nothing() -> None:
    unused = [beginning for beginning in TESTS if not any(row[0].startswith(beginning) for row in ROWS)]
    assert not unused
