"""Layers of any class whose weights are sharded, and are gathered while the layer computes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.custom_layers import plain_base, plain_view
from keras_ext.tensor.layer import SplitLayer
from keras_ext.tensor.lora import AdaptedLayer
from keras_ext.tensor.quantized import QuantizedColumns, QuantizedRows
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api


class GatheredWeights(SplitLayer):
    """Mix-in before any class of layer, for weights whose computation cannot be split.

    Each device holds a shard of such a weight, of its gradient and of its slots; the whole weight exists only while the
    layer is called, and its computation is not split. This costs more than the layers of ``keras_ext`` that split the
    computation, because every call communicates the weights.

    `gathered_class` makes the class; a layer is filled attribute by attribute from a layer of the plain class.

    Source: Rajbhandari et al., arXiv:1910.02054, stage 3 (fully sharded data parallelism over replicas), here over the
    mesh axis "tensor".
    """

    #: The class of the plain layer.
    plain_class: Any = None

    @classmethod
    def plain_config(cls, config: Any) -> dict[str, Any]:
        """Returns the config of the plain layer, for files."""
        return dict(config)

    @classmethod
    def from_config(cls, config: Any) -> Any:
        """Returns a layer of the plain class, as for `keras.models.clone_model`: a config does not contain shards."""
        return cls.plain_class.from_config(config)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Computes like the plain layer, with whole weights.

        Raises:
            AttributeError: the plain layer reads an attribute of a weight that only a variable has, such as ``value``.
        """
        try:
            return self._with_whole_weights().call(*args, **kwargs)
        except AttributeError as error:
            if error.obj is None or not ops.is_tensor(error.obj) or not hasattr(keras.Variable, error.name or ""):
                raise
            raise AttributeError(
                f"{self.plain_class.__name__} {self.name!r} reads {error.name!r} of a weight. While a layer with "
                "sharded weights is called, they are gathered, and are tensors, not variables. Use the weight itself, "
                f"as in keras.ops.matmul(x, self.kernel); or leave this layer whole: plan={{{self.name!r}: None}}."
            ) from error

    def _with_whole_weights(self) -> Any:
        """Returns a layer of the plain class for one call, which shares all but gathered weights with this one."""
        view = plain_view(self, self.plain_class, add_loss=self.add_loss)
        vars(view).update({name: self._whole(value) for name, value in vars(view).items()})
        return view

    def _whole(self, value: Any) -> Any:
        if isinstance(value, layer_api.SplitWeight):
            return self._gathered(value)
        if isinstance(value, (list, tuple)) and any(isinstance(item, layer_api.SplitWeight) for item in value):
            return [self._whole(item) for item in value]
        return value

    def _gathered(self, weight: layer_api.SplitWeight) -> Any:
        shards = self._placed()
        is_cast = weight._autocast and weight.shards[0].dtype == self.variable_dtype
        dtype = self.compute_dtype if is_cast else weight.dtype
        devices = [shards.parts.device(shards.members[index]) for index in shards.owned]
        return layer_api.joined_weight(weight, shards.owned, devices, shards.between, dtype)


@functools.cache
def gathered_class(plain_class: Any) -> Any:
    """Returns the class of layers like those of `plain_class` whose weights may be sharded."""
    base: Any = _BASES.get(plain_base(plain_class), GatheredWeights)
    if base is GatheredWeights and hasattr(plain_class, "enable_lora"):
        base = _Adapted
    names = {"__module__": plain_class.__module__, "__qualname__": f"Gathered{plain_class.__qualname__}"}
    made: Any = type(plain_class.__name__, (base, plain_class), {"plain_class": plain_class, **names})
    return layer_api.saved_as(plain_class)(made)


class _Adapted(AdaptedLayer, GatheredWeights):
    """Base of gathered layers with adapters, which are cut like the kernel."""


class _Dense(QuantizedColumns, _Adapted):
    """Computes each shard's part of the output if the kernel is quantized and cut along its columns."""

    def _cut_axis(self) -> int | None:
        return -1 if isinstance(self._kernel, layer_api.SplitWeight) else None


class _Embedding(QuantizedRows, _Adapted):
    """Looks up each shard's rows if the table is quantized."""


class _EinsumDense(QuantizedColumns, _Adapted):
    """Computes each shard's part of the output if the kernel is cut along a dim that the output has."""

    # Attributes of the plain layer.
    equation: str
    activation: Any
    _kernel: Any
    bias: Any
    #: As in ``ColumnParallelDense``.
    gather_output = True

    def _cut_axis(self) -> int | None:
        kernel = self._kernel
        return output_axis(self.equation, kernel.dim) if isinstance(kernel, layer_api.SplitWeight) else None

    def _summed_axis(self) -> int | None:
        """Returns the axis of the input, from the end, along which the kernel is cut into equal parts, or None."""
        kernel = self._kernel
        is_even = isinstance(kernel, layer_api.SplitWeight) and len(set(kernel.sizes)) == 1
        return input_axis(self.equation, kernel.dim) if is_even and self.quantization_mode is None else None

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Computes each shard's outputs and gathers them, or its partial sums of all outputs and adds them up."""
        axis, summed = self._cut_axis(), self._summed_axis()
        if axis is not None:
            pieces = self.pieces_by(*self.at_shards(), inputs)
            return self.joined(pieces, axis) if self.gather_output else self.in_pieces(pieces, axis)
        if summed is None or isinstance(self.bias, layer_api.SplitWeight):
            return super().call(inputs, training=training)
        lists = zip(*self.kernels_of_shards(), strict=True)
        partial = self._placed().run_each(self._multiplied, self.pieces_of(inputs, summed), *lists)
        return self.sums_of(partial, self.bias, self.activation, sequence_parallel=False)[0]

    def call_with_pieces(self, inputs: SplitTensor) -> Any:
        """Returns the output for an input that is in pieces, one at each shard."""
        return self.call(inputs) if inputs.dim - inputs.ndim == self._summed_axis() else self(inputs.whole())

    def at_shards(self) -> tuple[list[list[Any]], Callable[..., Any]]:
        """Returns each owned shard's weights, and a function from an input and these to the shard's part of the output.

        The function leaves out the activation, or a whole bias, if they cannot be applied to parts.
        """
        if self.quantization_mode is not None:
            return self.int8_at_shards()
        kernels, bias, is_apart = self.kernels_of_shards(), self.bias, self._is_apart()
        biases = self._placed().select_owned(bias.shards) if isinstance(bias, layer_api.SplitWeight) else None

        def forward(x: Any, *weights: Any) -> Any:
            y = self._multiplied(x, *weights[: len(kernels[0])])
            y = self._plus_bias(y, *weights[-1:]) if biases is not None else y
            return self.activation(y) if is_apart and self.activation is not None else y

        if biases is None:
            return kernels, forward
        return [[*kernel, own] for kernel, own in zip(kernels, biases, strict=True)], forward

    def _multiplied(self, x: Any, *kernel: Any) -> Any:
        return ops.einsum(self.equation, x, ops.cast(self.kernel_of(*kernel), self.compute_dtype))


#: The bases of gathered classes whose computation can be split, by the plain class.
_BASES: Mapping[type, Any] = {
    keras.layers.Dense: _Dense,
    keras.layers.EinsumDense: _EinsumDense,
    keras.layers.Embedding: _Embedding,
    keras.layers.ReversibleEmbedding: _Embedding,
}


def input_axis(equation: str, dim: int) -> int | None:
    """Returns the axis of an einsum's input, from the end, that is dim `dim` of its kernel; None if it is not summed.

    Example: ``input_axis("abc,cd->abd", 0)`` is -1, ``input_axis("abc,cd->abd", 1)`` None.
    """
    inputs, kernel, outputs = re.split(",|->", equation.replace(" ", ""))
    letter = kernel[dim]
    return inputs.index(letter) - len(inputs) if letter in inputs and letter not in outputs else None


def output_axis(equation: str, dim: int) -> int | None:
    """Returns the axis of an einsum's output, from the end, that is dim `dim` of its kernel; None if it is summed over.

    Example: ``output_axis("abc,cd->abd", 1)`` is -1, ``output_axis("abc,cd->abd", 0)`` None.
    """
    _, kernel, outputs = re.split(",|->", equation.replace(" ", ""))
    letter = kernel[dim]
    return outputs.index(letter) - len(outputs) if letter in outputs else None
