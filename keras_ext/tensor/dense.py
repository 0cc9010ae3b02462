"""Dense layers whose kernel is split: by output columns, or by input rows."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_ext.tensor.activations import check_elementwise
from keras_ext.tensor.split_kernel import ColumnParallel, RowParallel, SplitKernel
from strategies import layer_api


class _SplitDense(SplitKernel, keras.layers.Dense):
    """The base of both dense layers: the product with the kernel."""

    def _kernel_shape(self, input_shape: Any) -> tuple[int, ...]:
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        return (input_shape[-1], self.units)

    def _product(self, x: Any, kernel: Any) -> Any:
        return ops.matmul(x, kernel)

    def _wanted_lora(self) -> dict[str, Any]:
        # Keras' own build leaves `lora_alpha` out here.
        return {}


@layer_api.saved_as(keras.layers.Dense)
class ColumnParallelDense(ColumnParallel, _SplitDense):
    """``keras.layers.Dense`` whose units are split over the mesh axis "tensor".

    Each of t shards holds the kernel's columns, and the bias, of ``units / t`` units and computes these units from the
    whole input. If a `RowParallelDense` follows, with only elementwise functions between, outputs need not be gathered:
    then the pair costs one all-reduce forward and one backward.

    Under a strategy without that axis, and without a strategy, it is a ``Dense``. ``get_weights`` and files have the
    weights of a ``Dense``, and it is saved as one.

    Args:
        units: as in ``keras.layers.Dense``, as are all arguments not listed. t must divide it.
        activation: applied by each shard if it is one of Keras' elementwise functions; otherwise to the gathered
            output.
        gather_output: whether the output is one tensor. If not, it stays in pieces, which layers of ``keras_ext`` take
            as they are; for other layers they are gathered.
        records_ops: with ``gather_output=False``, whether the output is a symbolic tensor of Keras, for the ``call`` of
            a layer that computes with it by elementwise functions of ``keras.ops`` and gives the result to a
            `RowParallelDense`, as in ``down(keras.ops.silu(gate(x)) * up(x))``. They are computed with the pieces.

    Input shape:
        ``(batch, ..., inputs)``.

    Output shape:
        ``(batch, ..., units)``; in pieces, ``(batch, ..., units / t)`` each.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            up = keras_ext.ColumnParallelDense(8, "relu", gather_output=False)
            down = keras_ext.RowParallelDense(4)
            model = keras.Sequential([keras.Input((4,)), up, down])

    Raises:
        ValueError: t does not divide `units`; ``gather_output=False`` with an activation that is not elementwise;
            quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    def __init__(
        self, units: int, activation: Any = None, use_bias: bool = True, *, gather_output: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, gather_output=gather_output, **kwargs)


@layer_api.saved_as(keras.layers.Dense)
class RowParallelDense(RowParallel, _SplitDense):
    """``keras.layers.Dense`` whose inputs are split over the mesh axis "tensor".

    Each of t shards holds the kernel's rows of ``inputs / t`` inputs; the partial sums are added up by one all-reduce.
    The bias, which is added once, and the output are not split; with `sequence_parallel` the output is in pieces of the
    sequence, at the same cost.

    Under a strategy without that axis, and without a strategy, it is a ``Dense``. ``get_weights`` and files have the
    weights of a ``Dense``, and it is saved as one.

    Args:
        units: as in ``keras.layers.Dense``, as are all arguments not listed.
        input_is_parallel: True to take pieces only, as `ColumnParallelDense` returns with ``gather_output=False``;
            False to take one tensor only, and cut it; None to take either.
        sequence_parallel: whether the output stays in pieces along dim 1, by a reduce-scatter in place of the
            all-reduce, for layers that treat each position by itself, such as `ShardwiseLayerNormalization`.

    Input shape:
        ``(batch, ..., inputs)``; t must divide `inputs`. In pieces, ``(batch, ..., inputs / t)`` each.

    Output shape:
        ``(batch, ..., units)``; in pieces ``(batch, length / t, units)`` each, whose lengths may differ by one.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            model = keras.Sequential([keras.Input((4,)), keras_ext.RowParallelDense(3)])

    Raises:
        ValueError: t does not divide `inputs`; an input that contradicts `input_is_parallel`; `sequence_parallel` with
            inputs other than ``(batch, length, inputs)``, or with an activation that is not elementwise; quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.2.
    """

    own_arguments = ("input_is_parallel", "sequence_parallel")

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        *,
        input_is_parallel: bool | None = None,
        sequence_parallel: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, input_is_parallel=input_is_parallel, **kwargs)
        self.sequence_parallel = sequence_parallel
        if sequence_parallel:
            check_elementwise(self.activation, "sequence_parallel=True")

    def build(self, input_shape: Any) -> None:
        """Makes the shards of the kernel, and the bias."""
        if self.sequence_parallel:
            self.check_sequence(input_shape)
        super().build(input_shape)

    def _output_of(self, partial: list[Any]) -> Any:
        if not self.sequence_parallel or self._placed().count == 1:
            return super()._output_of(partial)
        sums = self.sums_of(partial, self.bias, self.activation, sequence_parallel=True)
        return self.in_pieces(sums, 1, self._placed().size_along(partial[0], 1))
