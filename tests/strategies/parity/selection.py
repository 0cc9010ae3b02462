"""Selects the cases that run in each world. All of them in all worlds take more than an hour.

With `--parity-all`, all do. With `--parity-table`, all do where there are two replicas, or one process, and some in all
worlds. Otherwise all but those that are like others run on two devices of one process; elsewhere those that meet there
what they do not meet on two devices.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.releases import marks_of
from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.cases_losses import EVERY_OPTIMIZER
from tests.strategies.parity.table import World, title

#: The world in which all run but those that are like others.
ALWAYS: World = ("MirroredStrategy", 1, 2)

#: Of the functional ones, one split and one in stages.
PROGRAMS_IN_PARTS = (("vision transformer", "split"), ("wide and deep network from a CSV file", "staged"))

#: Of whole programs, one of Keras' own step with every kind of input, and one of own losses.
_PROGRAMS = ("wide and deep network from a CSV file", "variational autoencoder")
#: Of optimizers, those that do something else with gradients than look at each number of a sum by itself.
_OPTIMIZERS = (
    "Adafactor",
    "ScheduleFreeAdamW",
    "SGD, clipnorm",
    "Adam, global_clipnorm",
    "Adam, EMA with overwrite",
    "SGD, gradient_accumulation_steps",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "SGD, gradients left in accumulation",
    "MultiOptimizer",
    "LossScaleOptimizer, gradients left in accumulation",
    "Adam, loss_scale_factor",
    "Embedding, sparse gradients, clipnorm",
    "Embedding, sparse gradients, gradient_accumulation_steps",
)
#: Of gradients that a program changes, one of each way from the tape to the variables.
_CHANGED_GRADIENTS = (
    "clip_by_global_norm in train_step",
    "clip_by_global_norm in train_step, gradient_accumulation_steps",
    "sharpness-aware minimization",
    "gradient through a step of descent",
    "norm of gradients in compute_loss",
    "gradient without a tape",
    "output_gradients",
    "gradients of rows, clipped",
    "gradients gathered by hand, tf.cond around apply_gradients",
    "optimizer that overrides apply_gradients",
)
#: Of what a step computes from the batch beside gradients, those of which nothing else is tested on two devices.
_OF_GLOBAL_BATCH = (
    "loss function that weighs rows by the batch",
    "SimCLR, gather_rows",
    "queue of rows, gather_rows",
    "sum over rows divided by the size of the global batch",
    "sparse inputs, Adagrad",
)
#: Cases that are like others.
_LIKE_OTHERS = {
    *(case.name for case in SECTIONS["What a step computes from the batch"] if case.name not in _OF_GLOBAL_BATCH),
    *(case.name for case in SECTIONS["Gradients that a program changes"] if case.name not in _CHANGED_GRADIENTS),
    *(case.name for case in SECTIONS["Programs as they are published"] if case.name not in _PROGRAMS),
    *(case.name for case in SECTIONS["Optimizers"] if case.name not in _OPTIMIZERS),
    EVERY_OPTIMIZER,
    "class_weight",
    "tf.data",
    "validation_data",
    "list of inputs",
    "tuple of inputs",
    "custom train_step with a keras.losses object",
    "masked sequences, reduction='sum'",
    "masked sequences, reduction='mean_with_sample_weight'",
    "custom loop, keras.losses object",
    "losses averaged by hand in train_step, run_eagerly",
    "overridden compute_loss, custom train_step",
    "jit_compile='auto'",
    "jit_compile=True, BatchNormalization(synchronized=True)",
    "mixed_bfloat16",
    "Conv2D, pooling",
    "Dropout(0)",
    "MeanIoU, top-k accuracy",
    "R2Score, RMSE, LogCoshError, CosineSimilarity",
    "SeparableConv2D, GroupNormalization",
    "GRU, bidirectional",
    "LayerNormalization, UnitNormalization",
}

#: The treatment of losses and of embedding tables, once each.
LOSSES = (
    "losses that layers add, of each kind",
    "losses averaged by hand in train_step",
    "table looked up by positions and by rows, Adam",
)

#: Cases in which four replicas differ from two: empty replicas, and each path between them once. Further ones run on
#: four replicas in two processes.
WITH_FOUR_BY_ITSELF = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "batches of 1 row",
    "BatchNormalization(synchronized=True)",
    "custom train_step with a loss per row",
    "loss with reduction='mean_with_sample_weight'",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "state of each kind that a layer keeps",
    "SimCLR, gather_rows",
)
#: Those that are measured for the table.
WITH_FOUR_REPLICAS = (
    *WITH_FOUR_BY_ITSELF,
    "one-pass generator",
    "table looked up by positions and by rows, Adam",
    "mixed_float16, overflow on one replica only",
    "batches of 3 rows",
    "train_on_batch, test_on_batch, predict_on_batch",
    "custom loop, loss over the global batch",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "losses that layers add, of each kind",
    "losses averaged by hand in train_step",
    "AUC, Precision, Recall, F1 and other counts",
    "steps_per_execution=3",
)

#: Cases of values that are counted or summed in ways of their own.
_SUMMED = (
    "AUC, Precision, Recall, F1 and other counts",
    "steps_per_execution=3",
    "mixed_float16, overflow on one replica only",
    "MultiOptimizer",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "BatchNormalization(synchronized=True)",
    *LOSSES,
)

#: Between two processes, how batches come and what is summed matter; what optimizers and layers do by themselves is the
#: same code as on two devices.
BETWEEN_TWO_PROCESSES = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "batches of 1 row",
    "PyDataset",
    "one-pass generator",
    "train_on_batch, test_on_batch, predict_on_batch",
    "custom train_step with a loss per row",
    "loss with reduction='mean_with_sample_weight'",
    "custom loop, loss over the global batch",
    "jit_compile=True, global_clipnorm, validation_data",
    "clip_by_global_norm in train_step, gradient_accumulation_steps",
    "sharpness-aware minimization",
    "gradient through a step of descent",
    "gradients gathered by hand, tf.cond around apply_gradients",
    "loss function that is a root; F1, largest error and ranks as metrics",
    "state of each kind that a layer keeps",
    "SimCLR, gather_rows",
    "logs of each kind",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    *_SUMMED,
    "float8, int8 with LoRA, int4, gradient_accumulation_steps, global_clipnorm",
)

#: Cases for Horovod, which computes the sums: one of each kind of sum. What is done with sums, counts, the losses of
#: each kind and several optimizers run the same code between two processes that TensorFlow joins.
OVER_HOROVOD = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "one-pass generator",
    "steps_per_execution=3",
    "mixed_float16, overflow on one replica only",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "BatchNormalization(synchronized=True)",
    "table looked up by positions and by rows, Adam",
    "sharpness-aware minimization",
    "state of each kind that a layer keeps",
)

#: Replicas beside this one in the process, and in another one.
WITH_TWO_IN_EACH_OF_TWO = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "BatchNormalization(synchronized=True)",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "table looked up by positions and by rows, Adam",
    "mixed_float16, overflow on one replica only",
    "state of each kind that a layer keeps",
    "minibatch standard deviation, gather_rows",
)

#: Worlds that run with a flag only: four replicas are two in each of two processes, too, and the tests of collectives
#: cover four processes.
SELDOM: tuple[World, ...] = (("MultiWorkerMirroredStrategy", 4, 1), ("HorovodStrategy", 4, 1))


def cases_of(world: World, config: pytest.Config) -> list[str]:
    """The names of the cases that run in a world."""
    _, num_processes, num_local = world
    for_table = config.getoption("--parity-table") is not None
    num_replicas = num_processes * num_local
    if config.getoption("--parity-all") or (for_table and (num_processes == 1 or num_replicas == 2)):
        return list(ALL)
    if world == ALWAYS:
        return [name for name in ALL if name not in _LIKE_OTHERS]
    if world in SELDOM and not for_table:
        return []
    if num_replicas == 2:
        return list(OVER_HOROVOD if world[0] == "HorovodStrategy" else BETWEEN_TWO_PROCESSES)
    if num_processes == num_local == 2:
        return list(WITH_TWO_IN_EACH_OF_TWO)
    return list(WITH_FOUR_REPLICAS if for_table else WITH_FOUR_BY_ITSELF)


def parametrize(metafunc: pytest.Metafunc, worlds: Iterable[World]) -> None:
    """Gives a test that asks for `world` and `case` each of these worlds with each of its cases."""
    if "world" in metafunc.fixturenames:
        pairs = [
            pytest.param(world, ALL[name], id=f"{title(world)}: {name}", marks=marks_of(name))
            for world in worlds
            for name in cases_of(world, metafunc.config)
        ]
        metafunc.parametrize(("world", "case"), pairs)
