"""The base of dense layers and convolutions: a kernel that is split by its outputs, or by its inputs.

The last dimension of a kernel is that of its outputs, the one before it that of its inputs; others do not matter here.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.activations import check_elementwise, is_elementwise
from keras_ext.tensor.lora import AdaptedLayer
from keras_ext.tensor.split_tensor import SplitTensor


class SplitKernel(AdaptedLayer):
    """Mix-in before a plain layer that multiplies by a kernel: makes the kernel, and refuses quantization."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refuse_quantization()

    @property
    def kernel(self) -> Any:
        """The whole kernel, in the plain layer's shape; with LoRA a tensor, the adapters' product added."""
        self._placed()
        return super().kernel

    @property
    def _channel_axis(self) -> int:
        """The dimension of the channels in the layer's input and output: the kernel sums over the former."""
        return -1

    @abc.abstractmethod
    def _kernel_shape(self, input_shape: Any) -> tuple[int, ...]:
        """Returns the whole kernel's shape, and sets the layer's `input_spec`."""

    @abc.abstractmethod
    def _product(self, x: Any, kernel: Any) -> Any:
        """Returns the product of ``x`` and the kernel, whole or a shard."""

    def _affine(self, x: Any, kernel: Sequence[Any], bias: Any = None) -> Any:
        y = self._product(x, ops.cast(self.kernel_of(*kernel), self.compute_dtype))
        return y if bias is None else self._plus_bias(y, bias)

    def _enable_wanted_lora(self) -> None:
        """Enables LoRA at the end of `build` if the constructor's arguments ask for it."""
        if self.lora_rank and not self.lora_enabled:
            self.enable_lora(self.lora_rank, **self._wanted_lora())

    def _wanted_lora(self) -> dict[str, Any]:
        """Returns the arguments, besides the rank, with which the plain layer's `build` enables LoRA."""
        return {"lora_alpha": self.lora_alpha}

    def _add_kernel(self, input_shape: Any, dim: int) -> None:
        self.place_shards()
        # As in Keras 3.16, whose layers read it.
        self.kernel_shape = self._kernel_shape(input_shape)
        self._kernel = self.add_split_weight(
            "kernel",
            self.kernel_shape,
            dim,
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def _bias_arguments(self) -> dict[str, Any]:
        return {
            "name": "bias",
            "shape": self._kernel.shape[-1:],
            "initializer": self.bias_initializer,
            "regularizer": self.bias_regularizer,
            "constraint": self.bias_constraint,
        }


class ColumnParallel(SplitKernel):
    """Mix-in before a `SplitKernel`: each shard computes some of the outputs."""

    own_arguments = ("gather_output", "records_ops")

    def __init__(self, *args: Any, gather_output: bool = True, records_ops: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gather_output, self.records_ops = gather_output, records_ops
        if not gather_output:
            check_elementwise(self.activation, "gather_output=False")

    def build(self, input_shape: Any) -> None:
        """Makes the shards of kernel and bias."""
        self._add_kernel(input_shape, -1)
        self.bias = self.add_split_weight(dim=0, **self._bias_arguments()) if self.use_bias else None
        self.built = True
        self._enable_wanted_lora()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Computes each shard's outputs."""
        shards = self._placed()
        # Keras losses read the logits from an attribute of a sigmoid's output, so it is applied after the gathering.
        for_losses = self.gather_output and self.activation is keras.activations.sigmoid
        apart = is_elementwise(self.activation) and not for_losses

        def forward(x: Any, *weights: Any) -> Any:
            kernel, biases = (weights, ()) if self.bias is None else (weights[:-1], weights[-1:])
            y = self._affine(x, kernel, *biases)
            return self.activation(y) if apart and self.activation is not None else y

        pieces = []
        for i, x, kernel in zip(shards.owned, self._inputs_of_shards(inputs), self.kernels_of_shards(), strict=True):
            pieces.append(shards.run(i, forward, x, *kernel, *([] if self.bias is None else [self.bias.shards[i]])))
        if not self.gather_output:
            return self.in_pieces(pieces, self._channel_axis)
        y = shards.gather(pieces, self._channel_axis)
        return y if apart else self.activation(y)

    def _inputs_of_shards(self, inputs: Any) -> list[Any]:
        return self.copies_of(inputs)


class RowParallel(SplitKernel):
    """Mix-in before a `SplitKernel`: each shard computes, from some of the inputs, a partial sum of every output."""

    own_arguments: tuple[str, ...] = ("input_is_parallel",)

    def __init__(self, *args: Any, input_is_parallel: bool | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.input_is_parallel = input_is_parallel

    def build(self, input_shape: Any) -> None:
        """Makes the shards of the kernel, and the bias."""
        self._add_kernel(input_shape, -2)
        self.bias = self.add_weight(**self._bias_arguments()) if self.use_bias else None
        self.built = True
        self._enable_wanted_lora()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Adds up the partial sums that the shards compute from their inputs."""
        shards = self._placed()
        self._check_input(inputs)
        pieces = self.pieces_of(inputs, self._channel_axis)
        partial = shards.run_each(
            lambda x, *kernel: self._affine(x, kernel), pieces, *zip(*self.kernels_of_shards(), strict=True)
        )
        return self._output_of(partial)

    def _output_of(self, partial: list[Any]) -> Any:
        """Returns the layer's output, given the owned shards' partial sums."""
        return self.sums_of(partial, self.bias, self.activation, sequence_parallel=False)[0]

    def _check_input(self, inputs: Any) -> None:
        if self.input_is_parallel is None or self._placed().count == 1:
            return
        if isinstance(inputs, SplitTensor) != self.input_is_parallel:
            raise ValueError(
                f"{type(self).__qualname__} {self.name!r} has input_is_parallel={self.input_is_parallel}: it takes "
                f"{'pieces' if self.input_is_parallel else 'one tensor'}. Set gather_output="
                f"{not self.input_is_parallel} in the layer before, or leave input_is_parallel out. "
                f"Received: {inputs!r}."
            )
