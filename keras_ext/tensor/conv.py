"""Convolutions whose kernel is split: by output channels, or by input channels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

import strategies
from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.layer import SplitLayer
from keras_ext.tensor.split import SplitTensor


class _SplitConv2D(SplitLayer, keras.layers.Conv2D):
    """What both have: the kernel, and what is refused."""

    def __init__(self, filters: int, kernel_size: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(filters, kernel_size, *args, **kwargs)
        if self.lora_rank:
            raise ValueError(self._refusal("LoRA", f"lora_rank={self.lora_rank}"))
        if self.quantization_mode is not None:
            raise ValueError(self._refusal("quantization", f"dtype={self.dtype_policy.name!r}"))

    def _add_kernel(self, input_shape: Any, dim: int) -> None:
        channels = input_shape[self._channel_axis]
        self.input_spec = keras.InputSpec(min_ndim=4, axes={self._channel_axis: channels})
        if channels % self.groups:
            raise ValueError(
                f"{type(self).__name__} {self.name!r} has groups={self.groups}, which must divide the number of input "
                f"channels. Received: {channels} channels, input_shape={input_shape}."
            )
        self.compute_output_shape(input_shape)  # refuses kernels that are larger than the image
        self._kernel = self.add_split_weight(
            "kernel",
            (*self.kernel_size, channels // self.groups, self.filters),
            dim,
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    @property
    def kernel(self) -> strategies.SplitWeight:
        """The whole kernel, shape ``(height, width, input channels / groups, filters)``."""
        self._placed()
        return self._kernel

    @property
    def _channel_axis(self) -> int:
        return -1 if self.data_format == "channels_last" else 1

    def _convolve(self, x: Any, kernel: Any, bias: Any = None) -> Any:
        x = self.convolution_op(x, ops.cast(kernel, self.compute_dtype))
        return x if bias is None else self._add_bias(x, bias)

    def _add_bias(self, x: Any, bias: Any) -> Any:
        bias = ops.cast(bias, self.compute_dtype)
        return ops.add(x, bias if self.data_format == "channels_last" else ops.reshape(bias, (-1, 1, 1)))


@strategies.saved_as(keras.layers.Conv2D)
class ColumnParallelConv2D(_SplitConv2D):
    """``keras.layers.Conv2D`` whose filters are split over the mesh axis "tensor".

    Each of t shards holds the kernel, and the bias, of ``filters / t`` output channels and computes them from the whole
    input; with groups, from the input channels of its groups. Followed by `RowParallelConv2D` with nothing but layers
    that treat each channel by itself between (``keras_ext.tensor.channelwise``), outputs need not be gathered: then the
    pair costs one all-reduce forward and one backward.

    Under a strategy without that axis, and without a strategy, it is a ``Conv2D``. Its weights are those of a
    ``Conv2D`` to ``get_weights`` and in files, where it is saved as one.

    Args:
        filters: as in ``keras.layers.Conv2D``, as are all arguments not listed. t must divide it.
        groups: as there; t must divide it if it is not 1.
        activation: applied by each shard if it is one of Keras' functions of single numbers; to the gathered output
            otherwise.
        gather_output: whether the output is one tensor. If not, it stays in pieces, which layers of ``keras_ext`` take
            as they are and others join.

    Input shape:
        ``(batch, height, width, channels)``; ``(batch, channels, height, width)`` with ``"channels_first"``.

    Output shape:
        ``(batch, new height, new width, filters)``, channels second with ``"channels_first"``; in pieces,
        ``filters / t`` channels each.

    Raises:
        ValueError: t does not divide `filters`, or `groups`; pieces are asked for with an activation that needs all
            channels; LoRA or quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3, for filters in place of columns.
    """

    own_arguments = ("gather_output",)

    def __init__(self, filters: int, kernel_size: Any, *args: Any, gather_output: bool = True, **kwargs: Any) -> None:
        super().__init__(filters, kernel_size, *args, **kwargs)
        self.gather_output = gather_output
        if not gather_output and not is_elementwise(self.activation):
            raise ValueError(
                f"With gather_output=False the activation must be one of Keras' that map each number by itself, such "
                f"as 'relu' or 'gelu'. Received: activation={self.activation!r}."
            )

    def build(self, input_shape: Any) -> None:
        """Makes the shards of kernel and bias."""
        shards = self.place_shards()
        if self.groups > 1 and self.groups % shards.count:
            raise ValueError(
                f"{shards.count} shards cannot hold equal numbers of the groups of {self.name}. Use groups=1, a number "
                f"of groups that {shards.count} divides, or keras.layers.Conv2D. Received: groups={self.groups}."
            )
        self._add_kernel(input_shape, 3)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_split_weight(
                "bias",
                (self.filters,),
                0,
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Computes each shard's channels."""
        shards = self._placed()
        # Filters of a group see the group's channels only, and a shard holds whole groups.
        copies = self.copies_of(inputs) if self.groups == 1 else self.pieces_of(inputs, self._channel_axis)
        apart = is_elementwise(self.activation)

        def forward(*tensors: Any) -> Any:
            y = self._convolve(*tensors)
            return self.activation(y) if apart and self.activation is not None else y

        pieces = []
        for i, x in enumerate(copies):
            weights = [self._kernel.shards[i]] + ([] if self.bias is None else [self.bias.shards[i]])
            pieces.append(shards.run(i, forward, x, *weights))
        if not self.gather_output:
            return self.in_pieces(pieces, self._channel_axis)
        y = shards.gather(pieces, self._channel_axis)
        return y if apart else self.activation(y)


@strategies.saved_as(keras.layers.Conv2D)
class RowParallelConv2D(_SplitConv2D):
    """``keras.layers.Conv2D`` whose input channels are split over the mesh axis "tensor".

    Each of t shards holds the kernel of ``channels / t`` input channels; what they make is added up, by one all-reduce.
    The bias, which is added once, and the output are not split.

    Under a strategy without that axis, and without a strategy, it is a ``Conv2D``. Its weights are those of a
    ``Conv2D`` to ``get_weights`` and in files, where it is saved as one.

    Args:
        filters: as in ``keras.layers.Conv2D``, as are all arguments not listed.
        groups: as there; 1 where there are several shards.
        input_is_parallel: True to take pieces only, as `ColumnParallelConv2D` returns with ``gather_output=False``;
            False to take one tensor only, and cut it; None to take either.

    Input shape:
        ``(batch, height, width, channels)``, or ``(batch, channels, height, width)`` with ``"channels_first"``; t must
        divide `channels`. In pieces, ``channels / t`` channels each.

    Output shape:
        ``(batch, new height, new width, filters)``, channels second with ``"channels_first"``.

    Raises:
        ValueError: t does not divide the input channels; groups; an input that is not as `input_is_parallel` says;
            LoRA or quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3, for input channels in place of rows.
    """

    own_arguments = ("input_is_parallel",)

    def __init__(
        self, filters: int, kernel_size: Any, *args: Any, input_is_parallel: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(filters, kernel_size, *args, **kwargs)
        self.input_is_parallel = input_is_parallel

    def build(self, input_shape: Any) -> None:
        """Makes the shards of the kernel, and the bias."""
        shards = self.place_shards()
        if self.groups > 1 and shards.count > 1:
            # Each filter sees the channels of one shard only: there are no partial sums to add up.
            raise ValueError(self._refusal("groups over several shards", f"groups={self.groups}"))
        self._add_kernel(input_shape, 2)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.filters,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Adds up what each shard makes of its channels."""
        shards = self._placed()
        self._check_input(inputs)
        pieces = self.pieces_of(inputs, self._channel_axis)
        partial = [shards.run(i, self._convolve, x, self._kernel.shards[i]) for i, x in enumerate(pieces)]
        y = shards.reduce(partial)
        if self.bias is not None:
            y = self._add_bias(y, self.bias)
        return y if self.activation is None else self.activation(y)

    def _check_input(self, inputs: Any) -> None:
        if self.input_is_parallel is None or self._placed().count == 1:
            return
        if isinstance(inputs, SplitTensor) != self.input_is_parallel:
            raise ValueError(
                f"{type(self).__name__} {self.name!r} has input_is_parallel={self.input_is_parallel}: it takes "
                f"{'pieces' if self.input_is_parallel else 'one tensor'}. Set gather_output="
                f"{not self.input_is_parallel} in the layer before, or leave input_is_parallel out. "
                f"Received: {inputs!r}."
            )
