"""The parity law inside a pipeline: stages with micro-batches give the results of a plain model on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import pytest

import keras_ext
from strategies._keras_hooks.addresses import Trainer
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.releases import marks_of
from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.harness import (
    TOLERANCE,
    Case,
    Outcome,
    compare,
    execute,
    fit_arrays,
    labels,
    vectors,
)

#: Cases that do not run in a pipeline, and the reasons.
LEFT_OUT = {
    **dict.fromkeys(
        (
            "subclassed, built lazily, add_loss, regularizer",
            "custom train_step with compute_loss",
            "custom train_step with a keras.losses object",
            "custom train_step with a loss per row",
            "overridden compute_loss",
            "overridden compute_loss, custom train_step",
            "loss with reduction='sum'",
            "losses averaged by hand in train_step",
            "losses averaged by hand in train_step, run_eagerly",
            "losses summed by hand in train_step",
            "gradient inside the loss of train_step",
        ),
        "models of a class of their own have no graph, and are refused; sums are in test_losses.py",
    ),
    **dict.fromkeys(
        (case.name for case in SECTIONS["What a step computes from the batch"]),
        "what looks at all rows sees one micro-batch, which is warned of: tests/strategies/_keras_hooks",
    ),
    **dict.fromkeys(
        (case.name for case in SECTIONS["Gradients that a program changes"]),
        "models with a train_step of their own have no stages",
    ),
    **dict.fromkeys(
        (case.name for case in SECTIONS["Programs as they are published"]),
        "those that can be in stages are, in tests/strategies/parity/test_parity.py",
    ),
    "BatchNormalization(synchronized=True)": "normalises by the rows of a micro-batch",
    "jit_compile=True, BatchNormalization(synchronized=True)": "normalises by the rows of a micro-batch",
    "SpectralNormalization": "comes closer to the norm with each call, so with each micro-batch",
    "MultiOptimizer": "is made with the variables of one model",
    "batches of 1 row": "differs by the order of sums, which 45 steps of Adam magnify: see below",
    "AUC, Precision, Recall, F1 and other counts": "one layer",
    "MeanIoU, top-k accuracy": "one layer",
    "R2Score, RMSE, LogCoshError, CosineSimilarity": "one layer",
}

#: Most of what optimizers do is independent of stages, and test_losses.py has loops in stages, too: the other cases run
#: with `--parity-all`.
OPTIMIZERS = ("accumulation", "LossScaleOptimizer", "global_clipnorm", "EMA with overwrite")
SELDOM = {case.name for case in SECTIONS["Optimizers"] if not any(each in case.name for each in OPTIMIZERS)} | {
    # Batches are read and sharded as they are without stages.
    "arrays, shuffled",
    "class_weight",
    "tf.data, infinite, steps_per_epoch",
    "validation_data",
    "tf.data",
    "PyDataset",
    "one-pass generator",
    "list of inputs",
    "tuple of inputs",
    "validation_split",
    "batches of 3 rows",
    "batches of changing size",
    # Contained in other cases.
    "Adam, global_clipnorm",
    "Adam, EMA with overwrite",
    "LossScaleOptimizer, gradients left in accumulation",
    "SGD, gradients left in accumulation",
    "float8, int8 with LoRA, int4",
    "float8, int8 with LoRA, int4, gradient_accumulation_steps, global_clipnorm",
    # In test_rows, test_model, test_losses and tests/examples.
    "losses that layers add, of each kind",
    "table looked up by positions and by rows, Adam",
    "sample_weight",
    "dict of inputs and outputs",
    "loss with reduction='mean_with_sample_weight'",
    "MultiHeadAttention, causal",
    # Similar to other cases.
    "LossScaleOptimizer, clipnorm",
    "table looked up by positions and by rows, Adagrad, clipnorm, run_eagerly",
    "SeparableConv2D, GroupNormalization",
    "LayerNormalization, UnitNormalization",
    "Conv2D, pooling",
    "Dropout(0)",
    "Lamb, global_clipnorm",
    "LossScaleOptimizer",
    "SGD, global_clipnorm",
    "SGD, gradient_accumulation_steps",
    "custom loop, keras.losses object",
    "jit_compile='auto'",
    "jit_compile=True, Conv2D, gradient_accumulation_steps",
    "losses that layers add, of each kind, custom loop",
    "mixed_bfloat16",
    "mixed_float16",
    "run_eagerly=True",
    "table looked up by positions, every optimizer",
    "GRU, bidirectional",
    "LSTM",
    *(name for name in ALL if name.startswith("masked sequences")),
}

#: Layers, metrics and optimizers give the same for any number of replicas besides the stages, except for leftover sums
#: and overflows.
IN_ONE_REPLICA = {
    case.name
    for section in ("Layers", "Metrics and training options", "Optimizers")
    for case in SECTIONS[section]
    if "accumulation" not in case.name and "overflow" not in case.name
}
MESHES = {"pipe=2": {"pipe": 2}, "data=2,pipe=2": {"data": 2, "pipe": 2}}


def in_pipeline(case: Case) -> Case:
    """Returns the same case with its model in two stages, compiled alike."""

    def make() -> Any:
        model = case.make()
        split = keras_ext.PipelineModel(model, num_microbatches=3, partition="uniform")
        # A new optimizer, which does not know the variables of the plain model.
        optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
        if hasattr(model, "_compiled_with"):
            split.compile(**model._compiled_with | {"optimizer": optimizer})
        else:
            split.optimizer = optimizer
        split.run_eagerly = model.run_eagerly
        return split

    return dataclasses.replace(case, make=make)


@pytest.fixture(autouse=True)
def _remembering_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = keras.Model.compile

    def remember(self: Any, optimizer: Any = "rmsprop", loss: Any = None, **kwargs: Any) -> None:
        self._compiled_with = {"optimizer": optimizer, "loss": loss, **kwargs}
        compile_(self, optimizer, loss, **kwargs)

    monkeypatch.setattr(Trainer, "compile", remember)


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=marks_of(name)) for name, case in ALL.items() if name not in LEFT_OUT]
)
def test_equals_one_device(case: Case, axes: Any, on_one_device: Callable[[str], Outcome]) -> None:
    difference = compare(on_one_device(case.name), execute(in_pipeline(case), mesh_strategy(axes)))
    assert difference.largest <= case.tolerance, difference


def test_batches_of_one_row() -> None:
    """The other micro-batches hold copies of that row, with weight 0."""
    fit = fit_arrays(vectors()[:10], labels()[:10], batch_size=1, epochs=1)
    case = dataclasses.replace(ALL["batches of 1 row"], run=fit)
    assert compare(execute(case, None), execute(in_pipeline(case), mesh_strategy({"pipe": 2}))).largest <= TOLERANCE
