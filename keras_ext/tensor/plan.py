"""The plan of a split model: the choice for each of its layers, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_ext.tensor.attention_heads import Heads
from keras_ext.tensor.cuts import own_weights
from strategies import layer_api
from strategies.text_table import text_table

#: The kinds of split of a layer. The last splits its weights only, not the computation.
KINDS = ("column", "row", "vocab", "heads", "hidden", "gathered")
#: Weights above this share of a model's parameters are split, or the plan gives the reason why not.
LARGE = 0.01


@dataclass(frozen=True)
class Choice:
    """The choice for one layer: the split of its weights, and of its output.

    Attributes:
        path: names of the models around the layer and its own name, joined by "/"; inside a custom layer, the names of
            attributes.
        layer: the plain layer.
        kind: one of `KINDS`; None if its weights stay whole.
        pieces: True if its output stays in pieces of the channels, for the layers that follow.
        sequence: True if its output stays in pieces of the sequence.
        dims: the weights that are cut one by one, each with the dim along which it is cut.
        reason: why large weights of the layer stay whole; empty if none do.
        heads: of another library's attention layer that is split by heads; None for all other layers.
        recorded: True if ops of Keras on its output, in pieces, are recorded for the layer that gets their result.
    """

    path: str
    layer: Any
    kind: str | None
    pieces: bool = False
    sequence: bool = False
    dims: tuple[tuple[Any, int], ...] = ()
    reason: str = ""
    heads: Heads | None = None
    recorded: bool = False

    @property
    def class_name(self) -> str:
        """The name of the layer's class."""
        return class_name_of(self.layer)


class Plan(Mapping[str, Choice]):
    """A choice for each layer of a model, by path, in the model's order. Prints as a table.

    Example:

        layers = [keras.layers.Dense(8, "relu", name="up"), keras.layers.Dense(4, name="down")]
        model = keras.Sequential([keras.Input((4,)), *layers])
        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            plan = keras_ext.default_plan(model)
        print(plan)
        kinds = {path: choice.kind for path, choice in plan.items()}
    """

    def __init__(self, choices: Mapping[str, Choice], num_shards: int) -> None:
        self._choices = dict(choices)
        self.num_shards = num_shards

    def __getitem__(self, path: str) -> Choice:
        return self._choices[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def __str__(self) -> str:
        rows = [("layer", "class", "split", "output", "parameters", "on a device")]
        totals = [0, 0]
        for path, choice in self._choices.items():
            whole, part = parameters(choice, self.num_shards)
            totals = [totals[0] + whole, totals[1] + part]
            if whole or choice.pieces or choice.sequence:
                output = "in pieces" if choice.pieces else "sequence" if choice.sequence else "whole"
                rows.append((path, choice.class_name, choice.kind or "-", output, f"{whole:,}", f"{part:,}"))
        rows.append(("all", "", "", "", f"{totals[0]:,}", f"{totals[1]:,}"))
        lines = [f"{self.num_shards} shards", *text_table(rows, left=range(4))]
        lines.append(f"{100 * self.split_share:.1f} % of the parameters are split.")
        for path, reason in self.whole.items():
            lines.append(f"Whole: {path} ({parameters(self[path], 1)[0]:,} parameters): {reason}.")
        return "\n".join(lines)

    @property
    def split_share(self) -> float:
        """The share of the model's parameters that is split."""
        sizes = [parameters(choice, self.num_shards) for choice in self.values()]
        whole = sum(size for size, _ in sizes)
        if self.num_shards == 1 or not whole:
            return 0.0
        # A device holds 1 / n of a split weight, rounded up.
        return min(1.0, (whole - sum(part for _, part in sizes)) / whole * self.num_shards / (self.num_shards - 1))

    @property
    def whole(self) -> Mapping[str, str]:
        """The reasons why weights with more than `LARGE` of the model's parameters stay whole, by the layer's path."""
        return {path: choice.reason for path, choice in self.items() if choice.reason}


def parameters(choice: Choice, num_shards: int) -> tuple[int, int]:
    """Returns the number of a layer's parameters, and of those on the device that holds most of them."""
    whole = part = 0
    dims = {id(weight): dim for weight, dim in choice.dims}
    for weight in layer_api.joined(own_weights(choice.layer)) if choice.layer.built else ():
        size = math.prod(weight.shape)
        whole += size
        if choice.dims:
            length = weight.shape[dims[id(weight)]] if id(weight) in dims else 1
            part += size // length * -(-length // num_shards) if id(weight) in dims else size
            continue
        # The bias that a row-parallel layer or an attention adds at the end is not split, nor is one of the two
        # adapters.
        stays_whole = weight.name == "bias" and (choice.kind == "row" or "attention_output" in weight.path)
        stays_whole |= weight.name.startswith("lora") and weight.name.endswith("_a") == (choice.kind == "column")
        is_split = (choice.kind is not None and choice.heads is None) or (
            choice.pieces and type(choice.layer) is keras.layers.BatchNormalization
        )
        part += -(-size // num_shards) if is_split and not stays_whole else size
    return whole, part


def class_name_of(layer: Any) -> str:
    """Returns the name of a layer's own class; its `__name__` may be that of its class in files."""
    return type(layer).__qualname__.rpartition(".")[2]
