"""Dense layers whose kernel is split: by output columns, or by input rows."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

import strategies
from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.layer import SplitLayer
from keras_ext.tensor.split import SplitTensor


class _SplitDense(SplitLayer, keras.layers.Dense):
    """What both have: the kernel, and what is refused."""

    def __init__(self, units: int, activation: Any = None, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, **kwargs)
        if self.lora_rank:
            raise ValueError(self._refusal("LoRA", f"lora_rank={self.lora_rank}"))
        if self.quantization_config is not None or self.quantization_mode is not None:
            raise ValueError(self._refusal("quantization", f"dtype={self.dtype_policy.name!r}"))

    def _add_kernel(self, num_inputs: int, dim: int) -> None:
        self._kernel = self.add_split_weight(
            "kernel",
            (num_inputs, self.units),
            dim,
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    @property
    def kernel(self) -> strategies.SplitWeight:
        """The whole kernel, shape ``(inputs, units)``."""
        self._placed()
        return self._kernel

    def _affine(self, x: Any, kernel: Any, bias: Any = None) -> Any:
        x = ops.matmul(x, ops.cast(kernel, self.compute_dtype))
        return x if bias is None else ops.add(x, ops.cast(bias, self.compute_dtype))


@strategies.saved_as(keras.layers.Dense)
class ColumnParallelDense(_SplitDense):
    """``keras.layers.Dense`` whose units are split over the mesh axis "tensor".

    Each of t shards holds the kernel's columns, and the bias, of ``units / t`` units and computes them from the whole
    input. Followed by `RowParallelDense` with nothing but a function of single numbers between, outputs need not be
    gathered: then the pair costs one all-reduce forward and one backward.

    Under a strategy without that axis, and without a strategy, it is a ``Dense``. Its weights are those of a ``Dense``
    to ``get_weights`` and in files, where it is saved as one.

    Args:
        units: as in ``keras.layers.Dense``, as are all arguments not listed. t must divide it.
        activation: applied by each shard if it is one of Keras' functions of single numbers; to the gathered output
            otherwise.
        gather_output: whether the output is one tensor. If not, it stays in pieces, which layers of ``keras_ext`` take
            as they are and others join.

    Input shape:
        ``(batch, ..., inputs)``.

    Output shape:
        ``(batch, ..., units)``; in pieces, ``(batch, ..., units / t)`` each.

    Raises:
        ValueError: t does not divide `units`; pieces are asked for with an activation that needs all units; LoRA or
            quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    own_arguments = ("gather_output",)

    def __init__(
        self, units: int, activation: Any = None, use_bias: bool = True, *, gather_output: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, **kwargs)
        self.gather_output = gather_output
        if not gather_output and not is_elementwise(self.activation):
            raise ValueError(
                f"With gather_output=False the activation must be one of Keras' that map each number by itself, such "
                f"as 'relu' or 'gelu'. Received: activation={activation!r}."
            )

    def build(self, input_shape: Any) -> None:
        """Makes the shards of kernel and bias."""
        self.place_shards()
        self._add_kernel(input_shape[-1], 1)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_split_weight(
                "bias",
                (self.units,),
                0,
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Computes each shard's units."""
        shards = self._placed()
        copies = self.copies_of(inputs)
        apart = is_elementwise(self.activation)

        def forward(*tensors: Any) -> Any:
            y = self._affine(*tensors)
            return self.activation(y) if apart and self.activation is not None else y

        pieces = []
        for i, x in enumerate(copies):
            weights = [self._kernel.shards[i]] + ([] if self.bias is None else [self.bias.shards[i]])
            pieces.append(shards.run(i, forward, x, *weights))
        if not self.gather_output:
            return self.in_pieces(pieces, -1)
        y = shards.gather(pieces)
        return y if apart else self.activation(y)


@strategies.saved_as(keras.layers.Dense)
class RowParallelDense(_SplitDense):
    """``keras.layers.Dense`` whose inputs are split over the mesh axis "tensor".

    Each of t shards holds the kernel's rows of ``inputs / t`` inputs; what they make is added up, by one all-reduce.
    The bias, which is added once, and the output are not split.

    Under a strategy without that axis, and without a strategy, it is a ``Dense``. Its weights are those of a ``Dense``
    to ``get_weights`` and in files, where it is saved as one.

    Args:
        units: as in ``keras.layers.Dense``, as are all arguments not listed.
        input_is_parallel: True to take pieces only, as `ColumnParallelDense` returns with ``gather_output=False``;
            False to take one tensor only, and cut it; None to take either.

    Input shape:
        ``(batch, ..., inputs)``; t must divide `inputs`. In pieces, ``(batch, ..., inputs / t)`` each.

    Output shape:
        ``(batch, ..., units)``.

    Raises:
        ValueError: t does not divide `inputs`; an input that is not as `input_is_parallel` says; LoRA or quantization.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    own_arguments = ("input_is_parallel",)

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        *,
        input_is_parallel: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, **kwargs)
        self.input_is_parallel = input_is_parallel

    def build(self, input_shape: Any) -> None:
        """Makes the shards of the kernel, and the bias."""
        self.place_shards()
        self._add_kernel(input_shape[-1], 0)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Adds up what each shard makes of its inputs."""
        shards = self._placed()
        self._check_input(inputs)
        pieces = self.pieces_of(inputs, -1)
        partial = [shards.run(i, self._affine, x, self._kernel.shards[i]) for i, x in enumerate(pieces)]
        y = shards.reduce(partial)
        if self.bias is not None:
            y = ops.add(y, ops.cast(self.bias, self.compute_dtype))
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
