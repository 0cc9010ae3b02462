"""The layers of the two programs on text.

Beside the originals' they take Keras' own arguments and give their config, as layers must to be copied or saved.
"""

from __future__ import annotations

from typing import Any

import keras

L, ops = keras.layers, keras.ops


@keras.saving.register_keras_serializable("programs")
class TokenAndPositionEmbedding(keras.layers.Layer):
    def __init__(self, maxlen: int, vocab_size: int, embed_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = {"maxlen": maxlen, "vocab_size": vocab_size, "embed_dim": embed_dim}
        self.token_emb = L.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = L.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x: Any) -> Any:
        positions = self.pos_emb(ops.arange(start=0, stop=ops.shape(x)[-1], step=1))
        return self.token_emb(x) + positions

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.sizes


def causal_attention_mask(n_dest: Any, n_src: Any, dtype: str) -> Any:
    """Ones in the lower triangle, the same for every row of the batch."""
    i = ops.arange(n_dest)[:, None]
    j = ops.arange(n_src)
    return ops.reshape(ops.cast(i >= j - n_src + n_dest, dtype), [1, n_dest, n_src])


@keras.saving.register_keras_serializable("programs")
class TransformerBlock(keras.layers.Layer):
    def __init__(
        self, embed_dim: int, num_heads: int, ff_dim: int, rate: float = 0.0, causal: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "ff_dim": ff_dim, "rate": rate}
        self.causal = causal
        self.att = L.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential([L.Dense(ff_dim, activation="relu"), L.Dense(embed_dim)])
        self.layernorm1 = L.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = L.LayerNormalization(epsilon=1e-6)
        self.dropout1 = L.Dropout(rate)
        self.dropout2 = L.Dropout(rate)

    def call(self, inputs: Any) -> Any:
        mask = None
        if self.causal:
            seq_len = ops.shape(inputs)[1]
            mask = causal_attention_mask(seq_len, seq_len, "bool")
        attention_output = self.dropout1(self.att(inputs, inputs, attention_mask=mask))
        out1 = self.layernorm1(inputs + attention_output)
        ffn_output = self.dropout2(self.ffn(out1))
        return self.layernorm2(out1 + ffn_output)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.sizes | {"causal": self.causal}
