"""A two-tower model: vectors for users and movies, and a score for how well they match."""

from __future__ import annotations

import keras
from keras import layers

import keras_ext


def build_model(num_users: int, num_movies: int, embedding_dim: int, *, sharded: bool = True) -> keras.Model:
    """Returns a model from {"user": (batch,), "movie": (batch,)}, numbers, to logits of clicks (batch, 1).

    The towers are combined only in a dot product, so that movies can be retrieved by a search for the vectors nearest
    to a user's (Covington et al., "Deep Neural Networks for YouTube Recommendations", 2016). The loss is per pair and
    does not use the other rows of a batch, so it does not depend on which rows a replica has.

    Args:
        num_users: number of rows of the users' table.
        num_movies: number of rows of the movies' table.
        embedding_dim: number of columns of both tables, and size of the vectors.
        sharded: whether the tables are sharded over the replicas; else each replica has both whole.
    """
    users, movies = (keras.Input((), dtype="int32", name=name) for name in ("user", "movie"))
    vectors = [
        _tower(users, num_users, embedding_dim, "user", sharded=sharded),
        _tower(movies, num_movies, embedding_dim, "movie", sharded=sharded),
    ]
    # The Dense layer is a scale and an offset of the dot product.
    logits = layers.Dense(1, name="logits")(layers.Dot(axes=1, name="dot")(vectors))
    return keras.Model({"user": users, "movie": movies}, logits, name="two_towers")


def _tower(numbers: keras.KerasTensor, count: int, size: int, name: str, *, sharded: bool) -> keras.KerasTensor:
    table = keras_ext.ShardedEmbedding if sharded else layers.Embedding
    x = table(count, size, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1), name=f"{name}_table")(
        numbers
    )
    x = layers.Dense(2 * size, activation="relu", name=f"{name}_hidden")(x)
    return layers.Dense(size, name=f"{name}_vector")(x)
