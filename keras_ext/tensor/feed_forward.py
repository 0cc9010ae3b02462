"""The feed-forward part of a transformer block: two dense layers, split as a pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

import strategies
from keras_ext.tensor.channelwise import PiecewiseDropout
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense


@strategies.saved_as(keras.Sequential)
class ParallelFeedForward(keras.Sequential):
    """``dropout(down(activation(up(x))))``, with `up` split by columns and `down` by rows over the mesh axis "tensor".

    The pair costs one all-reduce forward and one backward. In files it is a ``keras.Sequential`` of ``Dense``,
    ``Dense`` and, if there is any, ``Dropout``, as are its weights to ``get_weights``.

    Args:
        hidden_units: between the two layers; the number of shards must divide it.
        units: of the output; that of the input in a transformer.
        activation: of `up`: one of Keras' functions of single numbers.
        dropout: rate at which numbers of the output are dropped.
        use_bias: whether both layers have one.
        kernel_initializer: of both kernels, as are all `kernel_` and `bias_` arguments of both layers'.
        bias_initializer: of both biases.
        kernel_regularizer: of both kernels.
        bias_regularizer: of both biases.
        name: of the layer.

    Input shape:
        ``(batch, ..., inputs)``.

    Output shape:
        ``(batch, ..., units)``.

    Raises:
        ValueError: the number of shards does not divide `hidden_units`; an activation that needs all units.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    def __init__(
        self,
        hidden_units: int,
        units: int,
        activation: Any = "gelu",
        dropout: float = 0.0,
        *,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        name: str | None = None,
    ) -> None:
        of_both = {
            "use_bias": use_bias,
            "bias_initializer": keras.initializers.get(bias_initializer),
            "kernel_regularizer": keras.regularizers.get(kernel_regularizer),
            "bias_regularizer": keras.regularizers.get(bias_regularizer),
        }
        first = keras.initializers.get(kernel_initializer)
        # One that is used twice makes the same numbers twice.
        second = first.clone() if isinstance(first, keras.Initializer) else first
        up = ColumnParallelDense(
            hidden_units, activation, gather_output=False, kernel_initializer=first, name="up", **of_both
        )
        down = RowParallelDense(units, kernel_initializer=second, name="down", **of_both)
        super().__init__([up, down, *([PiecewiseDropout(dropout, name="dropout")] if dropout else [])], name=name)
        self._own = {
            "hidden_units": hidden_units,
            "units": units,
            "activation": keras.activations.serialize(up.activation),
            "dropout": dropout,
            "use_bias": use_bias,
            "kernel_initializer": keras.initializers.serialize(first),
            "bias_initializer": keras.initializers.serialize(of_both["bias_initializer"]),
            "kernel_regularizer": keras.regularizers.serialize(of_both["kernel_regularizer"]),
            "bias_regularizer": keras.regularizers.serialize(of_both["bias_regularizer"]),
        }

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of the ``Sequential``, for files."""
        return {name: value for name, value in config.items() if name not in config["own"] and name != "own"}

    def get_config(self) -> dict[str, Any]:
        """This layer's arguments, and the config of the ``Sequential``."""
        return {**super().get_config(), **self._own, "own": list(self._own)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> ParallelFeedForward:
        """Makes the layer of its arguments."""
        return cls(**{name: config[name] for name in (*config["own"], "name")})
