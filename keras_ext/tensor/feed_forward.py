"""The feed-forward part of a transformer block: two dense layers, split as a pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_ext.tensor.channelwise import ShardwiseDropout
from keras_ext.tensor.composite import Composite
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense
from strategies import layer_api

# Arguments of ``Dense`` for both layers, each with the function that makes the one object that both get.
_OF_BOTH: Mapping[str, Callable[[Any], Any]] = {
    "use_bias": bool,
    "bias_initializer": keras.initializers.get,
    "kernel_regularizer": keras.regularizers.get,
    "bias_regularizer": keras.regularizers.get,
    "dtype": lambda dtype: dtype,
}


@layer_api.saved_as(keras.Sequential)
class ParallelFeedForward(Composite, keras.Sequential):
    """``dropout(down(activation(up(x))))``, with `up` split by columns and `down` by rows over the mesh axis "tensor".

    The pair costs one all-reduce forward and one backward. In files it is a ``keras.Sequential`` of ``Dense``,
    ``Dense`` and ``Dropout`` (if any), whose weights ``get_weights`` returns.

    Args:
        hidden_units: units between the two layers; the number of shards must divide it.
        units: of the output; equal to those of the input in a transformer.
        activation: of `up`: one of Keras' elementwise functions.
        dropout: rate at which elements of the output are dropped.
        sequence_parallel: whether the output stays in pieces of the sequence, as in `RowParallelDense`.
        **kwargs: arguments of ``keras.layers.Dense`` for both layers, `use_bias`, `kernel_initializer`,
            `bias_initializer`, `kernel_regularizer`, `bias_regularizer` and `dtype`; others, such as `name`, are those
            of ``keras.Sequential``.

    Input shape:
        ``(batch, ..., inputs)``.

    Output shape:
        ``(batch, ..., units)``; with `sequence_parallel` in pieces, ``(batch, length / t, units)`` each.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            layer = keras_ext.ParallelFeedForward(hidden_units=8, units=4, kernel_initializer="he_normal")
            model = keras.Sequential([keras.Input((4,)), layer])

    Raises:
        ValueError: the number of shards does not divide `hidden_units`; an activation that is not elementwise;
            `sequence_parallel` with inputs other than ``(batch, length, inputs)``.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    def __init__(
        self,
        hidden_units: int,
        units: int,
        activation: Any = "gelu",
        dropout: float = 0.0,
        *,
        sequence_parallel: bool = False,
        **kwargs: Any,
    ) -> None:
        of_both = {name: get(kwargs.pop(name)) for name, get in _OF_BOTH.items() if name in kwargs}
        first = keras.initializers.get(kwargs.pop("kernel_initializer", "glorot_uniform"))
        # An initializer that is used twice returns the same numbers twice.
        second = first.clone() if isinstance(first, keras.Initializer) else first
        up = ColumnParallelDense(
            hidden_units, activation, gather_output=False, kernel_initializer=first, name="up", **of_both
        )
        down = RowParallelDense(
            units,
            sequence_parallel=sequence_parallel,
            kernel_initializer=second,
            name="down",
            **of_both,
        )
        drop = [ShardwiseDropout(dropout, dtype=of_both.get("dtype"), name="dropout")] if dropout else []
        super().__init__([up, down, *drop], **kwargs)
        # Keras' conversion of inputs would join pieces.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.note_arguments(
            hidden_units=hidden_units,
            units=units,
            activation=up.activation,
            dropout=dropout,
            sequence_parallel=sequence_parallel,
            kernel_initializer=first,
            **of_both,
        )

    def model_config(self) -> dict[str, Any]:
        """Returns the config of the ``Sequential``."""
        return dict(keras.Sequential.get_config(self))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Applies the layers in turn, without gathering pieces."""
        if mask is not None:
            inputs._keras_mask = mask
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs
