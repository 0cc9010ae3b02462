"""The warning that a number differs from that of one device: its own category, shown once with the program's line.

Every finding inside a step goes through :func:`warn`, so that `strict` can turn all of them into errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from strategies.batches.program_lines import line_of, program_frame
from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Form, Kind


class DifferenceWarning(UserWarning):
    """Under a strategy, a program computes a number that differs from that of the global batch on one device.

    The message names what differs and what to write instead; the warning's file and line are the program's.

    Example, to make training fail on it:

        strategies.strict()
    """


def strict() -> None:
    """Turns every :class:`DifferenceWarning` of this process into an error, for a program's own tests.

    Call it at the beginning of the program, in every process. A number that a strategy and one device compute
    differently then ends `fit` with the warning's text, on all ranks at the same step, since all ranks trace the same
    program. It adds a filter to Python's `warnings`; `warnings.resetwarnings()` removes it.

    Example:

        import strategies

        strategies.strict()
    """
    warnings.filterwarnings("error", category=DifferenceWarning)


_DIFFERENCE = (
    "so that under a strategy it is not that of one device: each replica computes it from its own rows, and training "
    "takes the mean over replicas, weighted by rows, or the sum"
)
_FIX = (
    "Compute it from the rows of all replicas, which strategies.gather_rows(x) returns; or write it as a mean, or as a "
    "sum, over rows, of terms joined by + and by factors that do not depend on the batch."
)
_FAULTS = {
    Kind.AMBIGUOUS: (
        "a sum over rows divided by a constant that may be the number of terms of a replica as well as that of the "
        "global batch"
    ),
    Kind.DISTINCT: "made of the values that are distinct among rows",
    Kind.MAX: "the largest of rows, and neither a mean nor a sum over them",
    Kind.MIN: "the smallest of rows, and neither a mean nor a sum over them",
    Kind.MIXED: "a sum over rows plus a term that is none",
    Kind.OTHER: "neither a mean nor a sum over rows",
    Kind.UNKNOWN: "made by operations that mix rows, or that may do so",
}
_FIXES = {
    Kind.AMBIGUOUS: (
        "Divide by strategies.global_rows(x), the number of rows of the global batch, or write it as a mean over rows."
    )
}
#: Kinds of a layer's per-row outputs that depend on other rows, too.
_MIXED_ROWS = (*_FAULTS, Kind.PAIRS, Kind.ROWS_PER_COUNT, Kind.SHIFTED)

_OF_SHARDS = (
    "is computed from single shards of weights or from their gradients, such as the norm or the mean of each, where on "
    "one device it is computed from whole weights: a layer is split over the devices of a replica, or its experts or "
    "rows are split over replicas"
)
_WHOLE_WEIGHTS = (
    "Sum over all variables before anything that is not linear, as tf.linalg.global_norm does; take a whole weight and "
    "its gradient from its layer, as in tape.gradient(loss, layer.kernel); use clipnorm, global_clipnorm or clipvalue "
    "of the optimizer, or one that needs whole weights; or leave the layer whole in the plan of keras_ext.parallelize."
)
#: The message about a layer or a model whose outputs mix rows, and its remedy.
LOOKS_ACROSS = (
    "looks at several rows of the batch, so that under a strategy it is not that of one device: each replica looks at "
    "its own rows"
)
MIXING_FIX = (
    "Look at the rows of all replicas, which strategies.gather_rows(x) returns, and at their number, "
    "strategies.global_rows(x); for the mean and variance of a layer, keras.layers.BatchNormalization("
    "synchronized=True) does that."
)


def is_fault(kind: Kind) -> bool:
    """Returns True if a loss of this kind cannot be computed from the losses of the replicas."""
    return kind in _FAULTS


def mixes_rows(kind: Kind) -> bool:
    """Returns True if per-row outputs of this kind, of a layer or a model, depend on other rows of the replica, too."""
    return kind in _MIXED_ROWS


def warn_of(kind: Kind, subject: str, value: Any = None, dependence: RowDependence | None = None) -> None:
    """Warns once, with the line of the program, of a loss that cannot be computed from the losses of the replicas.

    Args:
        kind: the kind of the loss.
        subject: names the loss, at the beginning of a sentence.
        value: the loss; other values that are computed from the same faulty number cause no second warning.
        dependence: finds the faulty number from which `value` is computed; None to warn in any case.
    """
    if not is_fault(kind):
        return
    if dependence is None or dependence.is_first_asked(dependence.origin(value, is_fault)):
        warn(f"{subject} is {_FAULTS[kind]}, {_DIFFERENCE}", _FIXES.get(kind, _FIX))


def warn_of_mixed_rows(
    value: Any, dependence: RowDependence, subject: str, texts: tuple[str, str] = (LOOKS_ACROSS, MIXING_FIX)
) -> bool:
    """Warns once of tensors that should have one item per row, but depend on other rows as well.

    Args:
        value: a nest of tensors.
        dependence: finds how they depend on rows.
        subject: names them, at the beginning of a sentence.
        texts: the rest of the sentence, without its full stop, and the remedy.

    Returns:
        True if any does.
    """
    found = False
    for leaf in tf.nest.flatten(value):
        if mixes_rows(dependence.kind(leaf)):
            found = True
            origin = dependence.origin(leaf, mixes_rows)
            if dependence.is_first_asked(origin):
                warn(f"{subject} {texts[0]}", texts[1], line_of(origin))
    return found


def warn_of_shards(value: Any, subject: str, dependence: RowDependence, right: Collection[Form] = ()) -> None:
    """Warns once of a value that is computed from some shards of weights, and differs from that of whole weights.

    Args:
        value: a nest of tensors.
        subject: names the value, at the beginning of a sentence.
        dependence: finds the shards from which `value` is computed.
        right: the forms that are right where the value is used, such as one item for each element of a shard.
    """
    if not dependence.may_have_shards:
        return
    for leaf in tf.nest.flatten(value):
        part = dependence.shards(leaf.values if isinstance(leaf, tf.IndexedSlices) else leaf)
        if part is not None and part.form not in right and dependence.is_first_asked(leaf):
            warn(f"{subject} {_OF_SHARDS}", _WHOLE_WEIGHTS)


def description(kind: Kind) -> str:
    """Returns a phrase for a kind for which :func:`is_fault` is true."""
    return _FAULTS[kind]


def warn(difference: str, fix: str, line: tuple[str, int] | None = None) -> None:
    """Warns once for each line of the program, as if that line had warned.

    Args:
        difference: what is computed, and how it differs from one device; a sentence without its full stop, which
            contains the word "replica".
        fix: what to write instead; a whole sentence.
        line: the program's file and line, if not the line that is running: see :func:`line_of`.
    """
    program = program_frame()
    # Python keeps the warnings that it has shown in the registry of the module.
    known = program.f_globals.setdefault("__warningregistry__", {})
    file, number = line or (program.f_code.co_filename, program.f_lineno)
    module = program.f_globals.get("__name__")
    warnings.warn_explicit(f"{difference}. {fix}", DifferenceWarning, file, number, module, known)
