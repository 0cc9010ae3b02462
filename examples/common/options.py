"""Options shared by all examples, and their command line flags."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from absl import app, flags, logging

STRATEGIES = ("mirrored", "multi_worker", "horovod")


class OptionError(ValueError):
    """An option that cannot be satisfied; the message is one line for the user."""


@dataclass(frozen=True)
class RunOptions:
    """The options of every training run; `define_run_flags` has a flag for each, with the same name and default."""

    strategy: str = "mirrored"
    mesh: str | None = None
    devices: int | None = None
    dtype_policy: str = "float32"
    seed: int = 0
    run_dir: str | None = None
    checkpoint_steps: int = 1000
    checkpoint_form: str = "whole"
    profile: bool = False
    verbose: int = 1


@dataclass(frozen=True)
class EpochOptions(RunOptions):
    """The options of a run whose epochs use each row of a data set once; each example has its own defaults."""

    epochs: int = 1
    batch_size: int = 64
    save: str | None = None


def define_run_flags() -> None:
    """Defines the flags of `RunOptions`."""
    flags.DEFINE_enum(
        "strategy",
        RunOptions.strategy,
        STRATEGIES,
        "mirrored: the devices of one process; multi_worker: those of the processes started by strategies.launch or "
        "srun; horovod: those of the processes started by horovodrun.",
    )
    flags.DEFINE_string(
        "mesh",
        RunOptions.mesh,
        "Sizes of the mesh axes, as in data=2,pipe=2,tensor=2: replicas, pipeline stages, and shards of a layer; or "
        "data=2,expert=2: replicas, in groups that share experts or tables; over the devices of all processes. One may "
        "be -1: inferred from their number. Default: data parallelism.",
    )
    flags.DEFINE_integer(
        "devices",
        RunOptions.devices,
        "Number of GPUs, with --strategy=mirrored; without GPUs, the number of logical CPU devices per process. "
        "Default: all GPUs; on CPUs the process' share of the mesh, and with data=-1 the devices of one replica.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "dtype_policy", RunOptions.dtype_policy, "Keras' dtype policy: float32, mixed_bfloat16, mixed_float16, ..."
    )
    flags.DEFINE_integer(
        "seed", RunOptions.seed, "Seed of initial weights, data order, augmentation and dropout.", lower_bound=0
    )
    flags.DEFINE_string(
        "run_dir",
        RunOptions.run_dir,
        "Folder for checkpoints, TensorBoard logs and the loss curve. Running the same command again resumes from the "
        "last checkpoint. Default: a folder in runs/, with a hash of the options in its name.",
    )
    flags.DEFINE_integer(
        "checkpoint_steps",
        RunOptions.checkpoint_steps,
        "Steps between checkpoints within an epoch; there is always one at its end.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "checkpoint_form",
        RunOptions.checkpoint_form,
        ["whole", "sharded", "background"],
        "whole: rank 0 writes whole files; sharded: each process writes its part, into a folder that all share; "
        "background: the same, while training goes on.",
    )
    flags.DEFINE_bool("profile", RunOptions.profile, "Record a few steps for TensorBoard's profiler.")
    flags.DEFINE_integer(
        "verbose", RunOptions.verbose, "Keras' output: 0 none, 1 a progress bar, 2 a line per epoch.", 0, 2
    )


@dataclass(frozen=True)
class PlacingOptions:
    """A model's placement on a mesh; `define_placing_flags` has a flag for each, with the same name and default."""

    microbatches: int = 4
    schedule: str = "1f1b"
    partition: str = "time"
    remat: str | None = None
    shard: Literal["optimizer", "weights"] | None = None


def define_placing_flags() -> None:
    """Defines the flags of `PlacingOptions`."""
    flags.DEFINE_integer(
        "microbatches",
        PlacingOptions.microbatches,
        "Micro-batches per replica and step, if the mesh has the axis pipe.",
        lower_bound=1,
    )
    schedules = ["gpipe", "1f1b", "eager_1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "v_half"]
    flags.DEFINE_enum("schedule", PlacingOptions.schedule, schedules, "Pipeline schedule.")
    flags.DEFINE_enum(
        "partition",
        PlacingOptions.partition,
        ["time", "parameters", "uniform"],
        "The cost that is balanced over the stages.",
    )
    flags.DEFINE_enum(
        "remat",
        PlacingOptions.remat,
        ["all", "all_but_last"],
        "Stages that recompute activations in their backward pass instead of storing them. Without pipeline stages, "
        "all means all layers.",
    )
    flags.DEFINE_enum(
        "shard",
        PlacingOptions.shard,
        ["optimizer", "weights"],
        "State that replicas keep in shards instead of copies: the optimizer's, or also the weights and gradients.",
    )


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Options = TypeVar("Options", bound=_Dataclass)


def from_flags(kind: type[Options]) -> Options:
    """Returns an instance of the dataclass `kind`, each field with the value of the flag of its name."""
    values: dict[str, Any] = {field.name: flags.FLAGS[field.name].value for field in dataclasses.fields(kind)}
    return kind(**values)


def start_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds, and reduces its log output.

    Call it after all checks that do not need TensorFlow, so that a wrong flag or file is reported at once.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    # TensorFlow logs a line for every variable that it copies to the devices.
    tf.get_logger().setLevel("WARNING")


def run_program(argv: list[str], run: Callable[[], Any]) -> None:
    """Calls `run` as every `main` does: rejects positional arguments, shows errors as one line, prints the result.

    Args:
        argv: the arguments from `absl.app.run`.
        run: trains; returns None or a result with `is_chief`, whose `outcome` has a report for people, and whose `str`
            ends with one line for a log parser. That line comes last.
    """
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only, received {argv[1:]}.")
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.INFO)
    try:
        result = run()
    except OptionError as error:
        sys.exit(f"error: {error}")
    if result is not None and result.is_chief:
        shown, end, last = str(result).rpartition("\n")
        print(f"{shown}{end}{result.outcome.report()}\n{last}", flush=True)
