"""Convolutions whose kernel is split: by output channels, or by input channels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_ext.tensor.split_kernel import ColumnParallel, RowParallel, SplitKernel
from strategies import layer_api


class _SplitConv2D(SplitKernel, keras.layers.Conv2D):
    """The base of both convolutions: the product with the kernel."""

    def _kernel_shape(self, input_shape: Any) -> tuple[int, ...]:
        channels = input_shape[self._channel_axis]
        self.input_spec = keras.InputSpec(min_ndim=4, axes={self._channel_axis: channels})
        if channels % self.groups:
            raise ValueError(
                f"{type(self).__qualname__} {self.name!r} has groups={self.groups}, which must divide the number of "
                f"input channels. Received: {channels} channels, input_shape={input_shape}."
            )
        self.compute_output_shape(input_shape)  # refuses kernels that are larger than the image
        return (*self.kernel_size, channels // self.groups, self.filters)

    @property
    def _channel_axis(self) -> int:
        return -1 if self.data_format == "channels_last" else 1

    def _product(self, x: Any, kernel: Any) -> Any:
        return self.convolution_op(x, kernel)

    def _plus_bias(self, x: Any, bias: Any) -> Any:
        return super()._plus_bias(x, bias if self.data_format == "channels_last" else ops.reshape(bias, (-1, 1, 1)))


@layer_api.saved_as(keras.layers.Conv2D)
class ColumnParallelConv2D(ColumnParallel, _SplitConv2D):
    """``keras.layers.Conv2D`` whose filters are split over the mesh axis "tensor".

    Each of t shards holds the kernel, and the bias, of ``filters / t`` output channels and computes these from the
    whole input; with groups, from the input channels of its groups. If a `RowParallelConv2D` follows, with only
    channelwise layers between (``keras_ext.tensor.channelwise``), outputs need not be gathered: then the pair costs one
    all-reduce forward and one backward.

    Under a strategy without that axis, and without a strategy, it is a ``Conv2D``. ``get_weights`` and files have the
    weights of a ``Conv2D``, and it is saved as one.

    Args:
        filters: as in ``keras.layers.Conv2D``, as are all arguments not listed. t must divide it.
        groups: as in ``keras.layers.Conv2D``; t must divide it if it is not 1.
        activation: applied by each shard if it is one of Keras' elementwise functions; otherwise to the gathered
            output.
        gather_output: whether the output is one tensor. If not, it stays in pieces, which layers of ``keras_ext`` take
            as they are; for other layers they are gathered.

    Input shape:
        ``(batch, height, width, channels)``; ``(batch, channels, height, width)`` with ``"channels_first"``.

    Output shape:
        ``(batch, new height, new width, filters)``, channels second with ``"channels_first"``; in pieces,
        ``filters / t`` channels each.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            first = keras_ext.ColumnParallelConv2D(8, 3, activation="relu", gather_output=False)
            second = keras_ext.RowParallelConv2D(4, 3)
            model = keras.Sequential([keras.Input((8, 8, 3)), first, second])

    Raises:
        ValueError: t does not divide `filters`, or `groups`; ``gather_output=False`` with an activation that is not
            elementwise; quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3, for filters in place of columns.
    """

    def __init__(self, filters: int, kernel_size: Any, *args: Any, gather_output: bool = True, **kwargs: Any) -> None:
        super().__init__(filters, kernel_size, *args, gather_output=gather_output, **kwargs)

    def _kernel_shape(self, input_shape: Any) -> tuple[int, ...]:
        count = self._placed().count
        if self.groups > 1 and self.groups % count:
            raise ValueError(
                f"{count} shards cannot hold equal numbers of the groups of {self.name}. Use groups=1, a number "
                f"of groups that {count} divides, or keras.layers.Conv2D. Received: groups={self.groups}."
            )
        return super()._kernel_shape(input_shape)

    def _inputs_of_shards(self, inputs: Any) -> list[Any]:
        # Filters of a group see the group's channels only, and a shard holds whole groups.
        return self.copies_of(inputs) if self.groups == 1 else self.pieces_of(inputs, self._channel_axis)


@layer_api.saved_as(keras.layers.Conv2D)
class RowParallelConv2D(RowParallel, _SplitConv2D):
    """``keras.layers.Conv2D`` whose input channels are split over the mesh axis "tensor".

    Each of t shards holds the kernel of ``channels / t`` input channels; the partial sums are added up by one
    all-reduce. The bias, which is added once, and the output are not split.

    Under a strategy without that axis, and without a strategy, it is a ``Conv2D``. ``get_weights`` and files have the
    weights of a ``Conv2D``, and it is saved as one.

    Args:
        filters: as in ``keras.layers.Conv2D``, as are all arguments not listed.
        groups: as in ``keras.layers.Conv2D``; must be 1 if there are several shards.
        input_is_parallel: True to take pieces only, as `ColumnParallelConv2D` returns with ``gather_output=False``;
            False to take one tensor only, and cut it; None to take either.

    Input shape:
        ``(batch, height, width, channels)``, or ``(batch, channels, height, width)`` with ``"channels_first"``; t must
        divide `channels`. In pieces, ``channels / t`` channels each.

    Output shape:
        ``(batch, new height, new width, filters)``, channels second with ``"channels_first"``.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            layer = keras_ext.RowParallelConv2D(4, 3, padding="same")
            model = keras.Sequential([keras.Input((8, 8, 2)), layer])

    Raises:
        ValueError: t does not divide the input channels; groups over several shards; an input that contradicts
            `input_is_parallel`; quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3, for input channels in place of rows.
    """

    def __init__(
        self, filters: int, kernel_size: Any, *args: Any, input_is_parallel: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(filters, kernel_size, *args, input_is_parallel=input_is_parallel, **kwargs)

    def _kernel_shape(self, input_shape: Any) -> tuple[int, ...]:
        if self.groups > 1 and self._placed().count > 1:
            # Each filter sees the channels of one shard only: there are no partial sums to add up.
            raise ValueError(self._refusal("groups over several shards", f"groups={self.groups}"))
        return super()._kernel_shape(input_shape)
