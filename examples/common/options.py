"""Options that examples share, and how a program is told them on the command line."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from absl import app, flags, logging

STRATEGIES = ("mirrored", "multi_worker", "horovod")


class OptionError(ValueError):
    """An option asks for what cannot be; the message is one line for the user."""


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
    profile: bool = False
    verbose: int = 1


def define_run_flags() -> None:
    """Defines the flags of `RunOptions`."""
    flags.DEFINE_enum(
        "strategy",
        RunOptions.strategy,
        STRATEGIES,
        "How the devices work together: those of one process; of the processes that strategies.launch or srun has "
        "started; of those that horovodrun has started.",
    )
    flags.DEFINE_string(
        "mesh",
        RunOptions.mesh,
        "Sizes of mesh axes, as in data=2,pipe=2,tensor=2: replicas, stages of a replica, and devices that share its "
        "layers. One may be -1, what is left. Default: all devices are replicas.",
    )
    flags.DEFINE_integer(
        "devices",
        RunOptions.devices,
        "Number of GPUs, with --strategy=mirrored; where there is none, of logical CPU devices of a process. Default: "
        "all GPUs; on CPUs as many as the mesh takes in one process, or one replica takes in many.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "dtype_policy", RunOptions.dtype_policy, "Keras' dtype policy: float32, mixed_bfloat16, mixed_float16, ..."
    )
    flags.DEFINE_integer("seed", RunOptions.seed, "Of all that is drawn at random.", lower_bound=0)
    flags.DEFINE_string(
        "run_dir",
        RunOptions.run_dir,
        "Folder for checkpoints, TensorBoard's logs and the loss curve. The same command goes on where it was killed. "
        "Default: a folder in runs/ that is named after the options.",
    )
    flags.DEFINE_integer(
        "checkpoint_steps",
        RunOptions.checkpoint_steps,
        "Save after so many steps of an epoch, too, beside at its end.",
        lower_bound=1,
    )
    flags.DEFINE_bool("profile", RunOptions.profile, "Record some steps for TensorBoard's profiler.")
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


def define_placing_flags() -> None:
    """Defines the flags of `PlacingOptions`."""
    flags.DEFINE_integer(
        "microbatches",
        PlacingOptions.microbatches,
        "Into how many a replica's batch is cut where the mesh has the axis pipe.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "schedule", PlacingOptions.schedule, ["gpipe", "1f1b", "interleaved_1f1b"], "Order of the pipeline's passes."
    )
    flags.DEFINE_enum(
        "partition", PlacingOptions.partition, ["time", "parameters", "uniform"], "What the stages are made even by."
    )
    flags.DEFINE_enum(
        "remat",
        PlacingOptions.remat,
        ["all", "all_but_last"],
        "Which stages compute activations again in their backward pass, instead of holding them; without stages "
        "all: all layers.",
    )


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Options = TypeVar("Options", bound=_Dataclass)


def from_flags(kind: type[Options]) -> Options:
    """The dataclass `kind` with the value that each flag of a field's name has."""
    values: dict[str, Any] = {field.name: flags.FLAGS[field.name].value for field in dataclasses.fields(kind)}
    return kind(**values)


def start_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds, and has it say no more than it must.

    What can be refused without it is refused before: a wrong flag or file is answered at once.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    # It has a line for every variable that it copies to the devices.
    tf.get_logger().setLevel("WARNING")


def run_program(argv: list[str], run: Callable[[], Any]) -> None:
    """Calls `run` as every `main` does: refuses stray arguments, shows errors as one line, prints the result.

    Args:
        argv: what `absl.app.run` hands over.
        run: trains; returns a result with `is_chief`, whose `str` is the last line, or None.
    """
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are understood, received {argv[1:]}.")
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.INFO)
    try:
        result = run()
    except OptionError as error:
        sys.exit(f"error: {error}")
    if result is not None and result.is_chief:
        print(result, flush=True)
