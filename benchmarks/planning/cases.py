"""The models and the meshes whose steps are predicted and measured. Imports Keras only when a model is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Setting:
    """A mesh on which a model is trained.

    Attributes:
        name: its row in the tables.
        mesh: as for the strategies.
        processes: 1, or the number of processes, each with one device and one core.
        shard: as for the strategies.
        pipeline: arguments of `PipelineModel`.
    """

    name: str
    mesh: Mapping[str, int]
    processes: int = 1
    shard: Literal["optimizer", "weights"] | None = None
    pipeline: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        size = 1
        for each in self.mesh.values():
            size *= each
        return size

    @property
    def group(self) -> str:
        """The machine among whose meshes the best one is chosen."""
        return f"{self.num_devices} devices, {self.processes} process{'es' if self.processes > 1 else ''}"


_FOUR = {"num_microbatches": 4}
#: The settings of every model.
SETTINGS = (
    Setting("one device", {"data": 1}),
    Setting("data=2", {"data": 2}),
    Setting("data=2, optimizer", {"data": 2}, shard="optimizer"),
    Setting("data=2, weights", {"data": 2}, shard="weights"),
    Setting("tensor=2", {"tensor": 2}),
    Setting("pipe=2", {"pipe": 2}, pipeline=_FOUR),
    Setting("pipe=2, zb_h1", {"pipe": 2}, pipeline={**_FOUR, "schedule": "zb_h1"}),
    Setting("data=4", {"data": 4}),
    Setting("data=2, tensor=2", {"data": 2, "tensor": 2}),
    Setting("data=2, pipe=2", {"data": 2, "pipe": 2}, pipeline=_FOUR),
    Setting("2 processes: data=2", {"data": 2}, 2),
    Setting("2 processes: data=2, optimizer", {"data": 2}, 2, "optimizer"),
    Setting("2 processes: tensor=2", {"tensor": 2}, 2),
    Setting("2 processes: pipe=2", {"pipe": 2}, 2, pipeline=_FOUR),
)
#: The settings of mixtures besides.
EXPERT_SETTINGS = (
    Setting("expert=2", {"expert": 2}),
    Setting("data=2, expert=2", {"data": 2, "expert": 2}),
)


@dataclass(frozen=True)
class Workload:
    """A model and its batch.

    Attributes:
        model: a key of `MODELS`.
        batch_size: rows of the global batch.
        num_steps: steps of a measurement, whose median counts.
        num_rounds: measurements of each setting.
    """

    model: str
    batch_size: int
    num_steps: int
    num_rounds: int

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings of the model."""
        return (*SETTINGS, *EXPERT_SETTINGS) if self.model == "mixture" else SETTINGS


#: The models by name, with the rows of a batch.
MODELS: Mapping[str, int] = {"dense": 256, "transformer": 32, "convolutions": 32, "mixture": 32}


def make_model(name: str) -> Any:
    """Returns a compiled model."""
    import keras

    keras.utils.set_random_seed(0)
    model = {"dense": _dense, "transformer": _transformer, "convolutions": _convolutions, "mixture": _mixture}[name]()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def make_batch(model: Any, batch_size: int) -> tuple[Any, Any]:
    """Returns inputs and targets for a model."""
    import numpy as np

    [given], [made] = model.inputs, model.outputs
    return np.zeros((batch_size, *given.shape[1:]), given.dtype), np.zeros((batch_size, *made.shape[1:-1]), "int32")


def _dense() -> Any:
    import keras
    from keras import layers

    hidden = [layers.Dense(1024, "relu") for _ in range(8)]
    return keras.Sequential([keras.Input((1024,)), *hidden, layers.Dense(16)])


def _transformer(*, experts: bool = False) -> Any:
    import keras
    from keras import layers

    import keras_ext

    width, tokens = 192, 64
    x = ids = keras.Input((tokens,), dtype="int32")
    x = layers.Embedding(512, width)(x)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization()(x)
        if experts:
            y = keras_ext.MixtureOfExperts(4, 2 * width, gated=False, load_balancing_loss=0.0)(y)
        else:
            y = layers.Dense(width)(layers.Dense(4 * width, "relu")(y))
        x = layers.Add()([x, y])
    return keras.Model(ids, layers.Dense(512)(x))


def _mixture() -> Any:
    return _transformer(experts=True)


def _convolutions() -> Any:
    import keras
    from keras import layers

    x = image = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(16)(x))
