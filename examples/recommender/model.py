"""A two-tower model: what a user and a movie are, as vectors, and how well they go together."""

from __future__ import annotations

import keras
from keras import layers

import keras_ext


def build_model(num_users: int, num_movies: int, embedding_dim: int, *, sharded: bool = True) -> keras.Model:
    """Returns a model from {"user": (batch,), "movie": (batch,)}, numbers, to logits of clicks (batch, 1).

    The towers meet in a dot product only, so that vectors of movies can be searched for those near a user's.
    (Covington et al., "Deep Neural Networks for YouTube Recommendations", 2016). The loss is over pairs, and not over
    the other rows of a batch: it does not depend on which rows a replica has.

    Args:
        num_users: rows of the users' table.
        num_movies: rows of the movies' table.
        embedding_dim: columns of both, and size of the vectors.
        sharded: the tables lie on the replicas that share the optimizer; else each replica has all of both.
    """
    users, movies = (keras.Input((), dtype="int32", name=name) for name in ("user", "movie"))
    vectors = [
        _tower(users, num_users, embedding_dim, "user", sharded=sharded),
        _tower(movies, num_movies, embedding_dim, "movie", sharded=sharded),
    ]
    # Its scale and offset.
    logits = layers.Dense(1, name="logits")(layers.Dot(axes=1, name="dot")(vectors))
    return keras.Model({"user": users, "movie": movies}, logits, name="two_towers")


def _tower(numbers: keras.KerasTensor, count: int, size: int, name: str, *, sharded: bool) -> keras.KerasTensor:
    table = keras_ext.ShardedEmbedding if sharded else layers.Embedding
    x = table(count, size, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1), name=f"{name}_table")(
        numbers
    )
    x = layers.Dense(2 * size, activation="relu", name=f"{name}_hidden")(x)
    return layers.Dense(size, name=f"{name}_vector")(x)
