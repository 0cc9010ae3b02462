"""The projections of attention, to heads and from them, sharded by heads."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.keras_versions import initializer_of_sums
from keras_ext.tensor.lora import AdaptedLayer
from strategies import layer_api

# Letters in equations: dims that are kept, inputs, heads (their number and size), outputs.
FREE, INPUTS, HEADS, OUTPUTS = string.ascii_lowercase, "M", "NH", "OPQRSTUV"


@layer_api.saved_as(keras.layers.EinsumDense)
class SplitProjection(AdaptedLayer, keras.layers.EinsumDense):
    """A projection to or from heads whose kernel is cut along the heads. The attention layer computes with it."""

    def build(self, input_shape: Any) -> None:
        """Makes the shards of the kernel, and the bias, which is also sharded if it has heads."""
        self.place_shards()
        inputs, kernel, outputs = re.split(",|->", self.equation)
        sizes = dict(zip(inputs, input_shape, strict=True)) | dict(
            zip(outputs[1:], self.partial_output_shape, strict=True)
        )
        added = [i for i, letter in enumerate(kernel) if letter in inputs]
        made = [i for i in range(len(kernel)) if i not in added]
        # Keras 3.16 reads it to enable LoRA.
        self.kernel_shape = tuple(sizes[letter] for letter in kernel)
        self._kernel = self.add_split_weight(
            "kernel",
            self.kernel_shape,
            kernel.index(HEADS[0]),
            initializer=initializer_of_sums(self, added, made),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.bias_axes is not None:
            shape = tuple(sizes[letter] for letter in self.bias_axes)
            arguments = {
                "initializer": self.bias_initializer,
                "regularizer": self.bias_regularizer,
                "constraint": self.bias_constraint,
            }
            if self.bias_axes == HEADS:
                self.bias = self.add_split_weight("bias", shape, 0, **arguments)
            else:
                self.bias = self.add_weight(name="bias", shape=shape, **arguments)
        self.input_spec = keras.InputSpec(ndim=len(input_shape))
        self.built = True

    def weights_of_shards(self) -> list[list[Any]]:
        """Returns for each owned shard the tensors of its kernel, and its part of the bias if that is split."""
        if not isinstance(self.bias, layer_api.SplitWeight):
            return self.kernels_of_shards()
        biases = self._placed().select_owned(self.bias.shards)
        return [[*kernel, bias] for kernel, bias in zip(self.kernels_of_shards(), biases, strict=True)]

    def project(self, x: Any, *weights: Any) -> Any:
        """Returns one shard's projection, by one entry of `weights_of_shards`; from heads, a partial sum."""
        has_bias = isinstance(self.bias, layer_api.SplitWeight)
        kernel, biases = (weights[:-1], weights[-1:]) if has_bias else (weights, ())
        kernel = ops.cast(self.kernel_of(*kernel), self.compute_dtype)
        x = ops.einsum(self.equation, ops.cast(x, self.compute_dtype), kernel)
        return self.activation(self._plus_bias(x, *biases) if biases else x)

    def add_up(self, partial: Sequence[Any], *, sequence_parallel: bool) -> list[Any]:
        """Returns a list of the output, summed over the shards' heads, or of its pieces of the sequence."""
        return self.sums_of(partial, self.bias, None, sequence_parallel=sequence_parallel)
