"""The cells of the grid that `make test` runs: a fixed sample, and one of each kind that has ever failed."""

from __future__ import annotations

from collections.abc import Iterator

#: Meshes, by layer and column.
SAMPLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("Dense", "as it is"): ("accumulation",),
    ("BatchNormalization", "as it is"): ("shard=optimizer",),
    ("LSTM", "layer frozen"): ("pipe=2",),
    ("GroupQueryAttention", "layer frozen, after"): ("data x tensor",),
    ("Bidirectional", "used twice"): ("data=2",),
    ("ReversibleEmbedding", "nested"): ("tensor=2", "pipe=2"),
    ("LayerNormalization", "mixed precision"): ("shard=optimizer",),
    ("SeparableConv2D", "regularizer, constraint"): ("data x tensor",),
}

#: Cells that were wrong or crashed when the grid was first run; one layer represents others that failed alike.
FAILED: dict[tuple[str, str], tuple[str, ...]] = {
    ("Dense", "one weight frozen"): ("tensor=2",),
    ("MultiHeadAttention", "one weight frozen, after"): ("tensor=2",),
    ("Dense", "LoRA"): ("tensor=2", "pipe=2"),
    ("EinsumDense", "LoRA"): ("data x tensor", "accumulation"),
    ("MultiHeadAttention", "LoRA"): ("data x tensor",),
    ("Embedding", "LoRA, after"): ("tensor=2",),
    ("Embedding", "int8"): ("data x tensor",),
    ("EinsumDense", "float8"): ("data x tensor", "pipe=2", "accumulation"),
    ("Dense", "own compile"): ("tensor=2",),
    ("Dense", "excluded from decay"): ("shard=weights",),
    ("Conv2D", "excluded from decay, before"): ("data x tensor",),
    ("SimpleRNNCell", "excluded from decay"): ("tensor=2",),
    ("SpectralNormalization", "as it is"): ("shard=weights",),
}


def cells() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields layer, column and meshes."""
    for (row, column), meshes in (SAMPLE | FAILED).items():
        yield row, column, meshes
