"""A decoder like GPT-2, of plain Keras layers or with mixtures of experts; it does not depend on the devices."""

from dataclasses import dataclass

import keras
from keras import layers, ops

import keras_ext

# The vocabulary is padded to a multiple of this, so that logits can be sharded over this number of devices.
_VOCABULARY_MULTIPLE = 8


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
        num_tokens: number of tokens of the tokenizer.
        sequence_length: number of tokens in the model's context.
        num_layers: number of blocks of attention and feed-forward layer.
        num_heads: number of attention heads; it divides `units`.
        units: size of the embedding and of the hidden state between blocks.
        dropout: fraction of the features dropped in training. Masks are drawn per replica, so that only 0 gives the
            same curve on every mesh.
        num_experts: number of experts of each feed-forward layer; 0 for one dense layer.
        top_k: number of experts per token.
        load_balancing_loss: factor of the loss that keeps experts evenly used.
        initial_scale: factor of the random initial weights of a backbone of KerasHub.
    """

    num_tokens: int
    sequence_length: int
    num_layers: int
    num_heads: int
    units: int
    dropout: float = 0.0
    num_experts: int = 0
    top_k: int = 2
    load_balancing_loss: float = 0.01
    initial_scale: float = 1.0

    @property
    def vocabulary_size(self) -> int:
        """The number of logits; those from `num_tokens` on are padding."""
        return -(-self.num_tokens // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def build_model(sizes: Sizes) -> keras.Model:
    """Returns a model from tokens (batch, sequence_length) to logits (batch, sequence_length, vocabulary_size).

    The logits at a position predict the next token and do not depend on later positions. Blocks are pre-norm
    (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
    """
    tokens = keras.Input((sizes.sequence_length,), dtype="int32", name="tokens")
    # In float32, for which GPUs have a cumulative sum; exact for any realistic length.
    positions = ops.cast(ops.cumsum(ops.ones_like(tokens, dtype="float32"), axis=1) - 1.0, "int32")
    x = layers.Add(name="embedding")(
        [
            _embedding(sizes.vocabulary_size, sizes.units, "token_embedding")(tokens),
            _embedding(sizes.sequence_length, sizes.units, "position_embedding")(positions),
        ]
    )
    x = layers.Dropout(sizes.dropout, name="embedding_dropout")(x)
    for index in range(sizes.num_layers):
        x = _block(x, sizes, f"block_{index}")
    x = layers.LayerNormalization(name="norm")(x)
    return keras.Model(tokens, layers.Dense(sizes.vocabulary_size, name="logits")(x), name="gpt")


def _embedding(count: int, units: int, name: str) -> keras.Layer:
    # A row that is looked up n times has n gradients, which Keras' Adam and clipping treat one by one. A regularizer,
    # even with factor 0, makes the gradient dense, as gradient accumulation does.
    return layers.Embedding(count, units, embeddings_regularizer=keras.regularizers.L2(0.0), name=name)


def _block(x: keras.KerasTensor, sizes: Sizes, name: str) -> keras.KerasTensor:
    h = layers.LayerNormalization(name=f"{name}_attention_norm")(x)
    h = layers.MultiHeadAttention(
        sizes.num_heads, sizes.units // sizes.num_heads, dropout=sizes.dropout, name=f"{name}_attention"
    )(h, h, use_causal_mask=True)
    h = layers.Dropout(sizes.dropout, name=f"{name}_attention_dropout")(h)
    x = layers.Add(name=f"{name}_attention_add")([x, h])
    h = layers.LayerNormalization(name=f"{name}_ffn_norm")(x)
    h = _experts(h, sizes, f"{name}_ffn") if sizes.num_experts else _feed_forward(h, sizes, f"{name}_ffn")
    h = layers.Dropout(sizes.dropout, name=f"{name}_ffn_dropout")(h)
    return layers.Add(name=f"{name}_ffn_add")([x, h])


def _feed_forward(x: keras.KerasTensor, sizes: Sizes, name: str) -> keras.KerasTensor:
    h = layers.Dense(4 * sizes.units, activation="gelu", name=f"{name}_up")(x)
    return layers.Dense(sizes.units, name=f"{name}_down")(h)


def _experts(x: keras.KerasTensor, sizes: Sizes, name: str) -> keras.KerasTensor:
    # Each expert is as large as the dense layer.
    return keras_ext.MixtureOfExperts(
        sizes.num_experts,
        4 * sizes.units,
        sizes.top_k,
        activation="gelu",
        gated=False,
        use_bias=True,
        load_balancing_loss=sizes.load_balancing_loss,
        name=name,
    )(x)
