"""A transformer block of split layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.attention import ParallelMultiHeadAttention
from keras_ext.tensor.channelwise import ShardwiseDropout
from keras_ext.tensor.composite import Composite
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense
from keras_ext.tensor.positionwise import ShardwiseAdd, ShardwiseLayerNormalization
from keras_ext.tensor.split_tensor import SplitTensor, cut_alike
from strategies import layer_api

#: The kinds of blocks.
KINDS = ("encoder", "decoder")


@layer_api.saved_as(keras.Model)
class ParallelTransformerBlock(Composite, keras.Model):
    """Attention and a feed-forward part, each with normalisation and a shortcut, split over the mesh axis "tensor".

    Heads and hidden units are split over that axis; the block costs two all-reduces forward and two backward, three
    each with attention to a memory. With `sequence_parallel`, each of them is a reduce-scatter and an all-gather, with
    the same number of bytes in total; each shard applies normalisation, dropout and shortcuts to ``1 / t`` of the
    sequence, and stores only this part for the backward pass.

    In files it is a ``keras.Model`` of ``LayerNormalization``, ``MultiHeadAttention``, ``Dense``, ``Dropout`` and
    ``Add``, whose weights ``get_weights`` returns.

    Args:
        units: channels of input and output.
        num_heads: of attention; the size of a head is ``units / num_heads``.
        hidden_units: of the feed-forward part.
        kind: ``"encoder"``, where each position attends to all positions, or ``"decoder"``, where none attends to later
            ones.
        memory_units: channels of the memory, such as an encoder's output, to which a second attention attends. None for
            a block without memory.
        dropout: rate, of attention scores and of each part's output.
        activation: of the hidden units: one of Keras' elementwise functions.
        normalize_first: whether each part normalises its input, rather than its sum with the shortcut.
        sequence_parallel: see above.
        **kwargs: arguments of the inner layers: `kernel_initializer` of all kernels, `epsilon` of the normalisations
            (1e-5 if left out), `dtype` of all; others, such as `name`, are those of ``keras.Model``.

    Call arguments:
        inputs: ``(batch, length, units)``, or a list of this and the memory, ``(batch, S, memory_units)``. Their Keras
            masks, as ``Embedding(mask_zero=True)`` makes them, hide positions.

    Output shape:
        ``(batch, length, units)``; with `sequence_parallel` in pieces, ``(batch, length / t, units)`` each, whose
        lengths may differ by one.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            block = keras_ext.ParallelTransformerBlock(8, num_heads=2, hidden_units=16, kind="decoder", dropout=0.1)
            model = keras.Sequential([keras.Input((5, 8)), block])

    Raises:
        ValueError: an unknown kind; sizes that do not divide.

    Source: Vaswani et al., arXiv:1706.03762; Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al.,
    arXiv:2205.05198, section 4.2.
    """

    def __init__(
        self,
        units: int,
        num_heads: int,
        hidden_units: int,
        kind: str = "encoder",
        *,
        memory_units: int | None = None,
        dropout: float = 0.0,
        activation: Any = "gelu",
        normalize_first: bool = True,
        sequence_parallel: bool = False,
        **kwargs: Any,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"The kind of a transformer block is one of {list(KINDS)}. Received: kind={kind!r}.")
        if units % num_heads:
            raise ValueError(
                f"{num_heads} heads cannot share {units} channels evenly. Use a multiple of {num_heads}. Received: "
                f"units={units}, num_heads={num_heads}."
            )
        activation = keras.activations.get(activation)
        given_initializer = kwargs.pop("kernel_initializer", "glorot_uniform")
        epsilon, dtype = kwargs.pop("epsilon", 1e-5), kwargs.pop("dtype", None)
        # Layers are made in the order of the computation, so that seeds are drawn as in a model of plain layers.
        common: dict[str, Any] = {"sequence_parallel": sequence_parallel, "dtype": dtype}

        def initializer() -> Any:
            # An initializer that is used twice returns the same numbers twice.
            is_one = isinstance(given_initializer, keras.Initializer)
            return given_initializer.clone() if is_one else keras.initializers.get(given_initializer)

        def attended(x: Any, memory: Any, name: str, causal: bool = False) -> Any:
            own = {"kernel_initializer": initializer(), "dropout": dropout, "name": name}
            layer = ParallelMultiHeadAttention(num_heads, units // num_heads, **own, **common)
            return layer(x, x if memory is None else memory, use_causal_mask=causal)

        def fed_forward(x: Any) -> Any:
            own = {"kernel_initializer": initializer(), "dtype": dtype, "name": "up"}
            x = ColumnParallelDense(hidden_units, activation, gather_output=False, **own)(x)
            return RowParallelDense(units, kernel_initializer=initializer(), name="down", **common)(x)

        def with_shortcut(part: Callable[[Any], Any], x: Any, name: str) -> Any:
            normalize = ShardwiseLayerNormalization(epsilon=epsilon, dtype=dtype, name=f"{name}_normalization")
            y = part(normalize(x) if normalize_first else x)
            if dropout:
                y = ShardwiseDropout(dropout, dtype=dtype, name=f"{name}_dropout")(y)
            y = ShardwiseAdd(dtype=dtype, name=f"{name}_shortcut")([x, y])
            return y if normalize_first else normalize(y)

        x = inputs = keras.Input((None, units), name="inputs")
        x = with_shortcut(lambda y: attended(y, None, "attention", causal=kind == "decoder"), x, "attention")
        if memory_units is not None:
            memory = keras.Input((None, memory_units), name="memory")
            inputs = [inputs, memory]
            x = with_shortcut(lambda y: attended(y, memory, "memory_attention"), x, "memory_attention")
        x = with_shortcut(fed_forward, x, "feed_forward")
        super().__init__(inputs=inputs, outputs=x, **kwargs)
        self.note_arguments(
            units=units,
            num_heads=num_heads,
            hidden_units=hidden_units,
            kind=kind,
            memory_units=memory_units,
            dropout=dropout,
            activation=activation,
            normalize_first=normalize_first,
            epsilon=epsilon,
            sequence_parallel=sequence_parallel,
            kernel_initializer=given_initializer,
            dtype=dtype,
        )

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the block like a model, with tensors, arrays or `SplitTensor`."""
        return super().__call__(cut_alike(inputs) if isinstance(inputs, (list, tuple)) else inputs, *args, **kwargs)

    def model_config(self) -> dict[str, Any]:
        """Returns the config of the model of plain layers."""
        return dict(keras.Model(self.input, self.output, name=self.name).get_config())

    def _convert_inputs_to_tensors(self, flat_inputs: Sequence[Any]) -> list[Any]:
        # Keras' own conversion would join pieces.
        return [
            value if isinstance(value, SplitTensor) else ops.convert_to_tensor(value, dtype=wanted.dtype)
            for value, wanted in zip(flat_inputs, self.inputs, strict=True)
        ]
