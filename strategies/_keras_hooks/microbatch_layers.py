"""Layers that compute something once per micro-batch of a pipeline, while one device computes it once per batch.

Micro-batches run one after the other, so a layer that looks at the whole batch does not see all of them:
``BatchNormalization(synchronized=True)``, and a mixture of experts with a capacity or a bias of its router.
``SpectralNormalization`` updates its kernel with each call. Tested in
``tests/keras_ext/pipeline/test_microbatch_warnings.py``.
"""

from __future__ import annotations

from typing import Any

import keras

from strategies.batches.row_warnings import warn
from strategies.collectives.descriptions import listed
from strategies.engine.strategy import Finding

_SYNCHRONIZED = (
    "BatchNormalization(synchronized=True) normalizes by the rows of all replicas in each of {number} micro-batches, "
    "one after the other: not by the global batch, as one device does.",
    "Use num_microbatches=1, or a layer that normalizes each row by itself, such as LayerNormalization or "
    "GroupNormalization. If statistics of micro-batches are what you mean, leave synchronized=True out.",
)
_OF_BATCH = (
    "The layer applies {arguments} to the rows of all replicas in each of {number} micro-batches, one after the other: "
    "not to the global batch, as one device does.",
    "Use num_microbatches=1, or leave {arguments} out.",
)
_SPECTRAL = (
    "SpectralNormalization divides its kernel by an estimate of the kernel's norm, and refines the estimate, in each "
    "of {number} micro-batches: one device does so once for the batch.",
    "Use num_microbatches=1.",
)


def layers_of_microbatches(model: Any) -> list[Finding]:
    """Returns the layers of a pipeline that compute once per micro-batch what one device computes once per batch.

    A layer of this project names the arguments that make it do so in an attribute ``arguments_of_batch``.

    Args:
        model: a Keras model; without an attribute ``num_microbatches`` there are no findings.
    """
    number = int(getattr(model, "num_microbatches", 1))
    found: list[Finding] = []
    for layer in [] if number == 1 else model._flatten_layers():
        arguments = list(getattr(layer, "arguments_of_batch", ()))
        if isinstance(layer, keras.layers.SpectralNormalization):
            difference, fix = _SPECTRAL
        elif isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized and layer.trainable:
            difference, fix = _SYNCHRONIZED
        elif arguments and layer.trainable:
            difference, fix = _OF_BATCH
        else:
            continue
        words = {"number": number, "arguments": listed(arguments, at_most=4)}
        name = getattr(layer, "path", None) or layer.name
        found.append(Finding(name, difference.format(**words), fix.format(**words)))
    return found


def warn_of_microbatch_layers(model: Any) -> None:
    """Warns before training, with the program's line, of the layers that :func:`layers_of_microbatches` finds."""
    by_difference: dict[tuple[str, str], list[str]] = {}
    for finding in layers_of_microbatches(model):
        by_difference.setdefault((finding.difference, finding.fix), []).append(repr(finding.layer))
    for (difference, fix), names in by_difference.items():
        warn(f"The pipeline {model.name!r} with {listed(names, at_most=4)}: {difference.removesuffix('.')}", fix)
