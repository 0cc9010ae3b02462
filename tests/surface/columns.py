"""The columns of the grid: what people do to a layer before or after they train it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from strategies import layer_api
from tests.surface.rows import Row

#: The name of the layer under test.
TESTED = "tested"


@dataclass(frozen=True)
class Column:
    """Something done to a layer.

    Attributes:
        arguments: makes arguments of the layer's constructor; None if it does not take them.
        whole: changes the plain model, once it is built.
        split: changes the model that is trained, on the mesh.
        optimizer: makes the model's optimizer, given further arguments of its constructor.
        compiled_first: whether the plain model is compiled, and its copy not compiled again.
        model_class: class of the model.
        shape: how the model around the layer is built: "once", "twice" or "nested".
        policy: the dtype policy.
        tolerance: largest allowed difference; above 1e-6 only for less than float32.
    """

    arguments: Callable[[Callable[..., Any]], Mapping[str, Any] | None] = lambda make: {}
    whole: Callable[[Any], None] = lambda model: None
    split: Callable[[Any], None] = lambda model: None
    optimizer: Callable[..., Any] = lambda **own: keras.optimizers.SGD(0.05, momentum=0.9, **own)
    compiled_first: bool = False
    model_class: Any = keras.Model
    shape: str = "once"
    policy: str = "float32"
    tolerance: float = 1e-6


class NotForThisLayer(Exception):  # noqa: N818
    """Raised if a column does not apply to a layer, in plain Keras either."""


class CompilesItself(keras.Model):
    """A model whose compile has its own arguments and sets its own attributes."""

    def compile(self, base: Any = None, size: float = 1.0, **kwargs: Any) -> None:
        """Compiles with an optimizer under another name, and a loss of its own."""
        super().compile(optimizer=base, loss="mse", loss_weights=[size], **kwargs)
        self.size = size


def tested(model: Any) -> Any:
    """Returns the layer under test."""
    return next(layer for layer in model._flatten_layers() if layer.name == TESTED)


def inside(model: Any) -> list[Any]:
    """Returns the layer under test and its inner layers."""
    return list(tested(model)._flatten_layers())


def _freeze_first(model: Any) -> None:
    weights = layer_api.joined(tested(model).trainable_weights, only_split=True)
    if not weights:
        raise NotForThisLayer("it has no weight that trains")
    weights[0].trainable = False


def _freeze_layer(model: Any) -> None:
    tested(model).trainable = False


def _enable_lora(model: Any) -> None:
    """Enables LoRA in all layers that support it, with nonzero B, so that it matters at once."""
    able = [layer for layer in inside(model) if hasattr(layer, "enable_lora")]
    if not able:
        raise NotForThisLayer("it has no LoRA")
    for layer in able:
        layer.enable_lora(2, lora_alpha=3, b_initializer=keras.initializers.RandomNormal(0.1, seed=5))


def _quantize(mode: str) -> Callable[[Any], None]:
    def quantize(model: Any) -> None:
        able = 0
        for layer in inside(model):
            try:
                layer.quantize(mode)
            except NotImplementedError:
                continue
            able += 1
        if not able:
            raise NotForThisLayer(f"it has no {mode}")

    return quantize


def _penalties(make: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Returns a regularizer or a constraint for every argument of a constructor that takes one."""
    names = _taken_by(make)
    found: dict[str, Any] = {name: keras.regularizers.L2(0.01) for name in names if name.endswith("_regularizer")}
    found.pop("activity_regularizer", None)
    found |= {name: keras.constraints.MaxNorm(0.8) for name in names if name.endswith("_constraint")}
    return found or None


def _taken_by(make: Callable[..., Any]) -> set[str]:
    layer = make()
    owner = layer.cell if isinstance(layer, keras.layers.RNN) and not _takes(type(layer)) else layer
    return _takes(type(owner))


def _takes(cls: Any) -> set[str]:
    return {
        name
        for base in cls.__mro__
        if issubclass(base, keras.Layer)
        for name in inspect.signature(base.__init__).parameters
        if name.endswith(("_regularizer", "_constraint"))
    }


def _without_decay_of_the_layer(**own: Any) -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5, epsilon=0.1, **own)
    optimizer.exclude_from_weight_decay(var_names=[TESTED])
    return optimizer


COLUMNS: Mapping[str, Column] = {
    "as it is": Column(),
    "one weight frozen": Column(whole=_freeze_first),
    "one weight frozen, after": Column(split=_freeze_first),
    "layer frozen": Column(whole=_freeze_layer),
    "layer frozen, after": Column(split=_freeze_layer),
    "LoRA": Column(whole=_enable_lora),
    "LoRA, after": Column(split=_enable_lora),
    "int8": Column(whole=_quantize("int8")),
    "float8": Column(whole=_quantize("float8")),
    "used twice": Column(shape="twice"),
    "nested": Column(shape="nested"),
    "own compile": Column(model_class=CompilesItself, compiled_first=True),
    "mixed precision": Column(policy="mixed_bfloat16", tolerance=2**-7),
    "regularizer, constraint": Column(arguments=_penalties),
    "excluded from decay": Column(optimizer=_without_decay_of_the_layer),
    "excluded from decay, before": Column(optimizer=_without_decay_of_the_layer, compiled_first=True),
}


def missing(row: Row, column: Column) -> str:
    """Returns why a column does not apply to a row; empty if it may."""
    if column.arguments(row.make) is None:
        return "it takes no regularizer and no constraint"
    return ""
