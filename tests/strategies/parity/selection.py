"""Selects the cases that run in each world. All cases in all worlds take more than an hour.

With `--parity-all`, all cases run. With `--parity-table`, all run in worlds of two replicas and in one process, and a
selection runs in all other worlds. Otherwise all but the similar ones run on two devices of one process; the other
worlds run the cases that exercise code which two devices do not.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.releases import marks_of
from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.cases_losses import EVERY_OPTIMIZER
from tests.strategies.parity.table import World, title

#: The world that runs all cases but those that are like others.
ALWAYS: World = ("MirroredStrategy", 1, 2)

#: One Functional program split, and one in stages.
PROGRAMS_IN_PARTS = (("vision transformer", "split"), ("wide and deep network from a CSV file", "staged"))

#: A whole program with losses of its own. One with Keras' own step runs in stages.
_PROGRAMS = ("variational autoencoder",)
#: Optimizers that do more with gradients than use each element of a sum alone; accumulation, the norm of all gradients
#: and averages in one.
_OPTIMIZERS = (
    "Adafactor",
    "ScheduleFreeAdamW",
    "SGD, clipnorm",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "SGD, gradients left in accumulation",
    "MultiOptimizer",
    "LossScaleOptimizer, gradients left in accumulation",
    "Adam, loss_scale_factor",
    "Embedding, sparse gradients, clipnorm",
    "Embedding, sparse gradients, gradient_accumulation_steps",
)
#: One program for each way from the tape to the variables in which gradients are changed.
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
    "optimizer that overrides apply, gradient_accumulation_steps",
    "custom loop, optimizer that overrides apply",
)
#: Cases of values other than gradients that no other test covers on two devices.
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
    # Two processes run the one that accumulates and clips.
    "float8, int8 with LoRA, int4",
    "float8, int8 with LoRA, int4, gradient_accumulation_steps, global_clipnorm",
    "tf.data",
    "validation_data",
    "validation_split",
    "arrays, shuffled",
    "batches of 3 rows",
    "list of inputs",
    "tuple of inputs",
    "custom train_step with a keras.losses object",
    "masked sequences, reduction='sum'",
    "masked sequences, reduction='mean_with_sample_weight'",
    "custom loop, keras.losses object",
    "losses averaged by hand in train_step, run_eagerly",
    "overridden compute_loss, custom train_step",
    "jit_compile='auto'",
    # test_compiled_steps compares such steps.
    "jit_compile=True, global_clipnorm, validation_data",
    "jit_compile=True, Conv2D, gradient_accumulation_steps",
    "jit_compile=True, BatchNormalization(synchronized=True)",
    "mixed_bfloat16",
    # Contained in the case with an overflow.
    "mixed_float16",
    # Contained in the case with several outputs.
    "run_eagerly=True",
    # The vision transformer, and split attention, run it.
    "MultiHeadAttention, causal",
    "Conv2D, pooling",
    # Pipelines run it.
    "Sequential, Conv2D, LayerNormalization",
    # Sharded weights run it.
    "SpectralNormalization",
    "Dropout(0)",
    "MeanIoU, top-k accuracy",
    "R2Score, RMSE, LogCoshError, CosineSimilarity",
    "SeparableConv2D, GroupNormalization",
    "GRU, bidirectional",
    "LayerNormalization, UnitNormalization",
}

#: Cases in which four replicas differ from two: empty replicas, and each path between replicas once. They need no two
#: replicas besides. Further cases run on four replicas in two processes.
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
#: The cases that are measured for the table.
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

#: Between two processes, the forms of batches and the sums matter; the work of optimizers and layers alone is the same
#: code as on two devices. Batches that do not divide, synchronized statistics, overflows, tables and the state of
#: layers run on two devices in each of two processes, and with one replica in each process over Horovod.
BETWEEN_TWO_PROCESSES = (
    "one-pass generator",
    "train_on_batch, test_on_batch, predict_on_batch",
    "custom train_step with a loss per row",
    "loss with reduction='mean_with_sample_weight'",
    "custom loop, loss over the global batch",
    "sharpness-aware minimization",
    "loss function that is a root; F1, largest error and ranks as metrics",
    "SimCLR, gather_rows",
    "logs of each kind",
    "SpectralNormalization",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "AUC, Precision, Recall, F1 and other counts",
    "steps_per_execution=3",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "losses that layers add, of each kind",
    "losses averaged by hand in train_step",
    "float8, int8 with LoRA, int4, gradient_accumulation_steps, global_clipnorm",
)

#: Cases for Horovod, which computes the sums: one of each kind of sum. The use of the sums, counts, the losses of each
#: kind and several optimizers run the same code as between two processes that TensorFlow joins; `suite_readers` reads
#: generators.
OVER_HOROVOD = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "steps_per_execution=3",
    "mixed_float16, overflow on one replica only",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "BatchNormalization(synchronized=True)",
    "table looked up by positions and by rows, Adam",
    "sharpness-aware minimization",
    "state of each kind that a layer keeps",
)

#: Cases for several replicas in this process and in another one.
WITH_TWO_IN_EACH_OF_TWO = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "BatchNormalization(synchronized=True)",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "table looked up by positions and by rows, Adam",
    "mixed_float16, overflow on one replica only",
    "state of each kind that a layer keeps",
    "minibatch standard deviation, gather_rows",
)

#: Gradients are applied in a conditional, where the replicas of a process cannot synchronize. Where each of them has
#: whole weights, and there is no other process, they need not.
IN_A_CONDITIONAL = "gradients gathered by hand, tf.cond around apply_gradients"

#: Worlds that need a flag: two replicas in each of two processes are four replicas, too, and the tests of collectives
#: cover four processes.
SELDOM: tuple[World, ...] = (("MultiWorkerMirroredStrategy", 4, 1), ("HorovodStrategy", 4, 1))


def cases_of(world: World, config: pytest.Config) -> list[str]:
    """Returns the names of the cases that run in a world."""
    _, num_processes, num_local = world
    for_table = config.getoption("--parity-table") is not None
    num_replicas = num_processes * num_local
    if config.getoption("--parity-all") or (for_table and (num_processes == 1 or num_replicas == 2)):
        is_refused = num_processes > 1 and num_local > 1
        return [name for name in ALL if not (is_refused and name == IN_A_CONDITIONAL)]
    if world == ALWAYS:
        return [name for name in ALL if name not in _LIKE_OTHERS and name not in WITH_FOUR_BY_ITSELF]
    if world in SELDOM and not for_table:
        return []
    if num_replicas == 2:
        return list(OVER_HOROVOD if world[0] == "HorovodStrategy" else BETWEEN_TWO_PROCESSES)
    if num_processes == num_local == 2:
        return list(WITH_TWO_IN_EACH_OF_TWO)
    return list(WITH_FOUR_REPLICAS if for_table else WITH_FOUR_BY_ITSELF)


def parametrize(metafunc: pytest.Metafunc, worlds: Iterable[World]) -> None:
    """Parametrizes a test with `world` and `case` by each of these worlds with each of its cases."""
    if "world" in metafunc.fixturenames:
        pairs = [
            pytest.param(world, ALL[name], id=f"{title(world)}: {name}", marks=marks_of(name))
            for world in worlds
            for name in cases_of(world, metafunc.config)
        ]
        metafunc.parametrize(("world", "case"), pairs)
