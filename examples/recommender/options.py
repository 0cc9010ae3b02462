"""The options of a run, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from common.options import EpochOptions, OptionError

#: The default learning rate of each optimizer.
LEARNING_RATES = {"adagrad": 0.02, "adam": 0.001}
SHARDS = ("none", "optimizer", "weights")


@dataclass(frozen=True)
class Options(EpochOptions):
    """The options of a run; `main.py` has a flag for each, with the same name and default."""

    data_dir: str | None = None
    num_ratings: int = 200_000
    epochs: int = 5
    batch_size: int = 1024
    embedding_dim: int = 32
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    shard: str = "optimizer"


def check(options: Options) -> None:
    """Refuses options that cannot work on any machine; it does not need TensorFlow.

    Raises:
        OptionError: the message names the flag.
    """
    if options.mesh is not None and any(f"{axis}=" in options.mesh.replace(" ", "") for axis in ("pipe", "tensor")):
        raise OptionError(
            f"--mesh={options.mesh}: tables lie on replicas. Use the axes data and expert, as in data=2,expert=2."
        )
