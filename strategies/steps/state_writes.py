"""Makes the values that a step writes into variables those of the global batch.

A trainer's step is a program for one device. A replica's write is handled by the kind of the value:

* the same on all replicas: written unchanged;
* a mean over rows: each replica writes its own, and their mean is computed when the step ends (`replica_state`);
* computed from sums, counts, means and maxima over rows: these are reduced over replicas where the value is written,
  and the value is recomputed from the results (`row_terms`), so that later reads in the step see it;
* anything else: a warning names the program's line.

Where replicas cannot synchronize, in branches and nested functions, a sum is divided by the replica's weight instead:
the mean at the end of the step is then the sum. Keras' own layers are left alone: their state is moving means.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies.batches import row_warnings, shares
from strategies.batches.row_kinds import Form, Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_terms import NoTermsError, Term, Terms, linear, refused, unchanged
from strategies.batches.shares import Share

#: Packages on the stack between a program and a variable, and Keras' modules that only forward values.
_BETWEEN = ("strategies", "tensorflow", "functools", "contextlib", "threading", "numpy")
_KERAS_BETWEEN = ("backend", "ops", "utils", "variables", "layers.layer", "metrics.metric")
_TOTAL = "_keras_strategies_total"

_FIX = (
    "Write a sum, a mean or a count over rows, or what is computed from these, without the rows themselves; or compute "
    "it from the rows of all replicas, which strategies.gather_rows(x) returns, and their number, "
    "strategies.global_rows(x)."
)


@dataclass(frozen=True)
class Write:
    """A value to be written into a replica's component of a variable.

    Attributes:
        value: the value to assign or to add.
        differs: True if it differs between replicas; their row-weighted mean is the value of the global batch.
    """

    value: Any
    differs: bool


def step_of_program() -> Share | None:
    """Returns the replica's share if a program's own code writes or reads state in a trainer's step, else None.

    The step must have several replicas or micro-batches. In Keras' own layers, metrics and optimizers the result is
    None.
    """
    share = shares.current()
    if share is None or not share.in_trainer or (share.num_replicas == 1 and not shares.is_in_microbatches()):
        return None
    if _is_keras_own():
        return None
    return share


def check_shards(name: str, value: Any) -> None:
    """Warns if a program sets a variable, in a trainer's step, to a value that differs from that of whole weights."""
    share, dependence = shares.current(), shares.current_dependence()
    if share is not None and share.in_trainer and dependence.may_have_shards and not _is_keras_own():
        row_warnings.warn_of_shards(value, f"The value that {name!r} is set to", dependence, right=(Form.ELEMENTS,))


def _is_keras_own() -> bool:
    """Returns True if the innermost frame outside the modules listed above is of Keras or keras_ext."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package, _, rest = frame.f_globals.get("__name__", "").partition(".")
        if package == "keras":
            if not rest.removeprefix("src.").startswith(_KERAS_BETWEEN):
                return True
        elif package not in _BETWEEN:
            return bool(package == "keras_ext")
        frame = frame.f_back
    return False


def can_synchronize(share: Share) -> bool:
    """Returns True where replicas can run a collective: not in branches, loops, nested functions or micro-batches."""
    if shares.is_in_microbatches():
        return False
    return share.is_in_step_graph


def global_write(share: Share, name: str, value: Any, dtype: tf.DType, *, is_increment: bool) -> Write:
    """Returns the write of a replica that gives the variable the value of the global batch.

    Args:
        share: the replica's share.
        name: the variable's name, for warnings.
        value: the value that the program writes.
        dtype: the variable's dtype.
        is_increment: True if the value is added to the variable.
    """
    dependence = shares.current_dependence()
    if shares.is_in_microbatches():
        return _microbatch_write(share, name, value, dtype, is_increment=is_increment)
    kind = dependence.kind(value)
    if kind is Kind.SAME:
        _warn_of_static_counts(share, name, value, is_increment=is_increment)
        return Write(value, differs=False)
    if kind is Kind.MEAN and dtype.is_floating:
        return Write(value, differs=True)
    try:
        if can_synchronize(share):
            terms = Terms(dependence, value)
            return Write(mark(terms.recomputed(totals(share, terms.found)), Kind.SAME), differs=False)
        if dtype.is_floating:
            as_mean = linear(dependence, value, same=unchanged, mean=unchanged, total=share.unweigh)
            return Write(as_mean, differs=True)
    except NoTermsError:
        pass
    row_warnings.warn(
        f"{name!r} is set to a value that a replica computes from its own rows, neither a mean nor a sum, so that "
        "under a strategy it is not that of one device",
        _FIX,
    )
    return Write(value, differs=dtype.is_floating)


def must_agree(share: Share, name: str, by_program: bool, graph: Any) -> bool:
    """Returns True if replicas must synchronize a variable, which each wrote alone, before the read that runs now.

    Keras' own layers read moving means only to update them, which is linear: synchronizing at the end of the step is
    enough. Where replicas cannot synchronize, a warning names the program's line.

    Args:
        share: the replica's share.
        name: the variable's name, for warnings.
        by_program: True if a program's own code wrote it.
        graph: the graph of the write.
    """
    if shares.is_in_microbatches() or (not by_program and _is_keras_own()) or _is_other_branch(graph):
        return False
    if can_synchronize(share):
        return True
    row_warnings.warn(
        f"{name!r} is read in a branch, a loop or a tf.function after a step has written it, so that a replica sees "
        "what it has written itself, and not what one device has",
        "Read it before it is written, or outside of the branch, loop or tf.function.",
    )
    return False


def _is_other_branch(graph: Any) -> bool:
    """Returns True if a branch of a tf.cond is being traced, and `graph` is the other branch."""
    current = tf.compat.v1.get_default_graph()
    if graph is None or graph is current or not getattr(current, "is_control_flow_graph", False):
        return False
    names = [str(getattr(each, "name", "")) for each in (graph, current)]
    (one, _, _), (other, _, _) = (name.replace("_false_", "_true_").partition("_true_") for name in names)
    return one == other


def mean(share: Share, value: tf.Tensor) -> tf.Tensor:
    """Returns the mean over replicas, weighted by rows. All replicas call it at the same time."""
    weighed = tf.math.multiply_no_nan(value, tf.cast(share.local_weight(), value.dtype))
    total: tf.Tensor = tf.distribute.get_replica_context().all_reduce("SUM", weighed)
    return total


def check_in_scope(name: str, value: Any) -> None:
    """Warns of a write into a variable that was created outside the strategy's scope and is not replicated."""
    if not isinstance(value, tf.Variable) or isinstance(value, tf.distribute.DistributedValues):
        return
    share = step_of_program()
    if share is not None and share.num_replicas > 1:
        row_warnings.warn(
            f"{name!r} was made outside of the strategy's scope, so that each replica of a process writes it after the "
            "other, and each process has another one",
            "Make it inside of `with strategy.scope():`.",
        )


def is_same(slices: tf.IndexedSlices) -> bool:
    """Returns True if slices are the same on all replicas."""
    dependence = shares.current_dependence()
    return all(dependence.kind(each) is Kind.SAME for each in (slices.values, slices.indices))


def check_scattered(name: str, slices: tf.IndexedSlices) -> None:
    """Warns if a program sets slices that differ between replicas."""
    if step_of_program() is not None and not is_same(slices):
        row_warnings.warn(
            f"Rows of {name!r} are set to what a replica has of its own rows, so that under a strategy they are not "
            "those of one device",
            "Set them from the rows of all replicas, which strategies.gather_rows(x) returns for indices and values.",
        )


def first_replica_write(share: Share, value: Any, dtype: tf.DType) -> Write | None:
    """Returns the first replica's write, on all replicas; None where replicas cannot synchronize."""
    if shares.current_dependence().kind(value) is Kind.SAME:
        return Write(value, differs=False)
    if not can_synchronize(share):
        return None
    own = tf.cast(value, dtype)
    total = tf.distribute.get_replica_context().all_reduce("SUM", tf.stop_gradient(share.on_first(own)))
    return Write(mark(total, Kind.SAME), differs=False)


def totals(share: Share, terms: Sequence[Term]) -> list[tf.Tensor]:
    """Returns the terms, reduced over all replicas in one message. All replicas call it at the same time."""
    missing = [term for term in terms if not hasattr(term.tensor, _TOTAL)]
    if missing:
        context = tf.distribute.get_replica_context()
        sums = context.all_reduce("SUM", [tf.stop_gradient(_addend(share, term)) for term in missing])
        for term, total in zip(missing, sums, strict=True):
            reduced = total
            if term.how in ("max", "min"):
                reduced = (tf.reduce_max if term.how == "max" else tf.reduce_min)(total, axis=0)
            setattr(term.tensor, _TOTAL, mark(reduced, Kind.SAME))
    return [getattr(term.tensor, _TOTAL) for term in terms]


def _addend(share: Share, term: Term) -> tf.Tensor:
    """Returns a replica's term of a sum over replicas: for a maximum, its value in its own row of zeros."""
    tensor = term.tensor
    if term.how == "sum":
        return share.keep(tensor, tf.zeros_like(tensor))
    if term.how == "mean":
        return tf.math.multiply_no_nan(tensor, tf.cast(share.local_weight(), tensor.dtype))
    limits = (tensor.dtype.min, tensor.dtype.max)
    neutral = tf.fill(tf.shape(tensor), tf.constant(limits[0] if term.how == "max" else limits[1], tensor.dtype))
    row = share.keep(tensor, neutral)[tf.newaxis]
    last, others = share.num_replicas - 1, [[0, 0]] * (row.shape.rank - 1)
    return tf.pad(row, share.value_on_replica(lambda replica: [[replica, last - replica], *others]))


def _warn_of_static_counts(share: Share, name: str, value: Any, *, is_increment: bool) -> None:
    """Warns of each constant that a write adds and that equals the static number of rows of a replica."""
    added = [value]
    made = share.dependence.made(value) if isinstance(value, tf.Tensor) else None
    if not is_increment:
        added = list(made.inputs) if made is not None and made.type in ("Add", "AddV2", "Sub") else []
    for each in added:
        warn_of_static_count(share, name, each)


def warn_of_static_count(share: Share, name: str, added: Any) -> None:
    """Warns if what is added to a variable is a constant that equals the static number of rows of a replica."""
    number = tf.get_static_value(added) if isinstance(added, tf.Tensor) else added
    if not isinstance(number, int | float) and getattr(number, "size", 0) != 1:
        return
    if any(float(number) == n for n in share.num_rows if n > 1):
        row_warnings.warn(
            f"{name!r} is changed by {float(number):g}, which is also the number of rows of a replica: if it was taken "
            "from the shape of a batch of static size, one device has that of all rows",
            "For the number of all rows, write strategies.global_rows(x).",
        )


def _microbatch_write(share: Share, name: str, value: Any, dtype: tf.DType, *, is_increment: bool) -> Write:
    """Returns the write for one micro-batch: sums over rows add up to the batch's; any other value is warned of."""
    dependence = shares.current_dependence()
    try:
        if share.num_replicas > 1 and not dtype.is_floating:
            raise NoTermsError
        total = share.unweigh if share.num_replicas > 1 else unchanged
        old = functools.partial(_only_old, is_increment=is_increment)
        return Write(linear(dependence, value, same=old, mean=refused, total=total), differs=True)
    except NoTermsError:
        row_warnings.warn(
            f"{name!r} is written by a stage of a pipeline, so that a replica writes it once for each micro-batch, and "
            "one device once for the batch",
            "Write it in the model's train_step, from the outputs of all rows; or add sums over rows to it.",
        )
    return Write(value, differs=dtype.is_floating)


_STATE = "_keras_strategies_state"


def mark_read(tensor: Any) -> Any:
    """Marks a tensor as the value of a variable, and returns it."""
    if isinstance(tensor, tf.Tensor):
        setattr(tensor, _STATE, True)
    return tensor


def is_state(tensor: Any) -> bool:
    """Returns True if a tensor is marked as the value of a variable."""
    return hasattr(tensor, _STATE)


def _only_old(value: Any, *, is_increment: bool) -> Any:
    if is_increment or not is_state(value):
        raise NoTermsError
    return value
