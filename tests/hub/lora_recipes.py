"""The published LoRA recipe of KerasHub on a mesh: a backbone with adapters, and its file, against plain Keras."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from tests.hub import backbones

#: Five decoders, a text encoder, and an image encoder.
NAMES = (
    "GPT2Backbone",
    "LlamaBackbone",
    "GemmaBackbone",
    "MistralBackbone",
    "Phi3Backbone",
    "BertBackbone",
    "ViTBackbone",
)
#: Arguments of the strategy, by cell.
CELLS: Mapping[str, Mapping[str, Any]] = {
    "data=2": {"mesh": {"data": 2}},
    "tensor=2": {"mesh": {"tensor": 2}},
    "shard=weights": {"mesh": {"data": 2}, "shard": "weights"},
    "pipe=2": {"mesh": {"pipe": 2}},
}
#: Backbones whose layers plain Keras cannot make from their own configs, in a model of another class.
UNREADABLE = ("LlamaBackbone", "ViTBackbone")
RANK = 2
ROWS = 8


class Recipe:
    """A backbone whose adapters are trained once in plain Keras, and then on meshes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: list[np.ndarray] = []
        model = self._made()
        self._begun = [np.array(weight) for weight in model.get_weights()]
        self._inputs = backbones.inputs_of(model, ROWS)
        self._targets = backbones.targets_of(model, self._inputs)
        self.trained = [weight.trainable for weight in model.weights]
        self._compile(model)
        self._plain = self._fit(model)
        self._predicted = self._predictions(model)
        with tempfile.TemporaryDirectory() as folder:
            self._of_adapters = self._predictions(self._with_adapters_of(model, pathlib.Path(folder)))

    def largest_differences(
        self, arguments: Mapping[str, Any], folder: pathlib.Path, *, after: bool = False
    ) -> dict[str, float]:
        """Trains on a mesh, saves, and opens the file in plain Keras.

        Args:
            arguments: arguments of the strategy.
            folder: folder for files.
            after: whether LoRA is enabled after `parallelize`, not before.

        Returns:
            The largest differences from one device: of losses, weights, frozen weights, and predictions.
        """
        axes = arguments["mesh"]
        devices = [f"CPU:{i}" for i in range(int(np.prod(list(axes.values()))))]
        with strategies.MirroredStrategy(devices, **arguments).scope():
            model = backbones.build(self._name) if after else self._made()
            if "tensor" in axes:
                model = keras_ext.parallelize(model)
            if after:
                self._adapt(model)
            if "pipe" in axes:
                model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
            self._compile(model)
        found = self._fit(model)
        weights = found[1:]
        plain = self._plain[1:]
        frozen = [np.max(np.abs(a - b)) for a, b, t in zip(self._begun, weights, self.trained, strict=True) if not t]
        differences = {"losses": _difference(self._plain[0], found[0])}
        differences["weights"] = max(_difference(a, b) for a, b in zip(plain, weights, strict=True))
        differences["frozen"] = float(max(frozen))
        differences["predictions"] = self._difference_of_predictions(model)
        model.save_weights(folder / "merged.weights.h5")
        other = backbones.build(self._name)
        other.load_weights(folder / "merged.weights.h5")
        differences["predictions of the file"] = self._difference_of_predictions(other)
        if self._name not in UNREADABLE or "pipe" not in axes:
            # Loaded without compiling: attention's config does not record adapters in its parts, in plain Keras either.
            model.save(folder / "model.keras")
            opened = keras.saving.load_model(folder / "model.keras", compile=False)
            differences["predictions of the model's file"] = self._difference_of_predictions(opened)
        if "pipe" not in axes:
            other = self._with_adapters_of(model, folder)
            # Without the biases, which are trained together with the adapters.
            found = self._predictions(other)
            pairs = zip(self._of_adapters, found, strict=True)
            differences["predictions of the adapters"] = max(_difference(a, b) for a, b in pairs)
        return differences

    def _made(self) -> Any:
        model = backbones.build(self._name)
        self._adapt(model)
        return model

    def _with_adapters_of(self, model: Any, folder: pathlib.Path) -> Any:
        """Returns a plain backbone with the model's adapters, read from a file."""
        model.save_lora_weights(folder / "adapters.lora.h5")
        other = backbones.build(self._name)
        other.load_lora_weights(folder / "adapters.lora.h5")
        return other

    def _adapt(self, model: Any) -> None:
        """Enables LoRA; adapters are random, so that all of them matter from the first step."""
        model.enable_lora(RANK)
        if self._begun:
            model.set_weights(self._begun)
            return
        generator = np.random.default_rng(1)
        for weight in model.weights:
            if weight.name == "lora_kernel_b":
                weight.assign(generator.normal(scale=0.1, size=weight.shape))

    def _compile(self, model: Any) -> None:
        model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-3), loss=backbones.losses_of(model))

    def _fit(self, model: Any) -> list[np.ndarray]:
        """Returns losses, then weights."""
        options: dict[str, Any] = {"batch_size": ROWS, "epochs": 2, "shuffle": False, "verbose": 0}
        losses = model.fit(self._inputs, self._targets, **options).history["loss"]
        return [np.asarray(losses), *map(np.asarray, model.get_weights())]

    def _predictions(self, model: Any) -> list[np.ndarray]:
        return [np.asarray(each) for each in keras.tree.flatten(model.predict(self._inputs, verbose=0))]

    def _difference_of_predictions(self, model: Any) -> float:
        found = self._predictions(model)
        return max(_difference(a, b) for a, b in zip(self._predicted, found, strict=True))


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference, relative where numbers are above 1."""
    return float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(one)))) if one.size else 0.0
