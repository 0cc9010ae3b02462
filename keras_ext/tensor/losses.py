"""Cross-entropy and accuracy of logits in pieces, which are never gathered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.mappings import add_up
from keras_ext.tensor.split_tensor import SplitTensor, whole_tensor
from strategies import layer_api
from strategies.evenly import even_bounds

#: Whole numbers up to this one are exact in float32.
_EXACT_IN_FLOAT32 = 2**24


@layer_api.saved_as(keras.losses.SparseCategoricalCrossentropy)
class VocabParallelSparseCategoricalCrossentropy(keras.losses.SparseCategoricalCrossentropy):
    """``keras.losses.SparseCategoricalCrossentropy`` of logits in pieces along the classes.

    Each shard reduces its piece to three numbers for each label: its largest logit, the sum of
    ``exp(logit - largest)``, and the label's logit if the piece contains it, else 0. Besides the labels, only these
    numbers and their gradients are communicated. For logits in one tensor, it is Keras' loss.

    Labels outside the classes give NaN, as in Keras' loss on GPUs; on CPUs Keras' loss raises an error.

    In files it is Keras' loss, so that a compiled model opens without this package.

    Args:
        from_logits: must be True.
        ignore_class: as in ``keras.losses.SparseCategoricalCrossentropy``, as are all arguments not listed.
        reduction: how the losses of all labels become one number.
        name: of the loss.
        dtype: the dtype in which it is computed.

    Shapes:
        Labels ``(batch, ...)`` or ``(batch, ..., 1)``; logits ``(batch, ..., classes)``, of which shard i has
        ``(batch, ..., classes_i)``.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            table = keras_ext.VocabParallelReversibleEmbedding(11, 4, gather_output=False)
            ids = keras.Input((5,), dtype="int32")
            model = keras.Model(ids, table(table(ids), reverse=True))
            model.compile("adam", keras_ext.VocabParallelSparseCategoricalCrossentropy())

    Raises:
        ValueError: `from_logits` is not True; labels of another shape.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    def __init__(
        self,
        from_logits: bool = True,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str = "sparse_categorical_crossentropy",
        dtype: Any = None,
    ) -> None:
        if from_logits is not True:
            raise ValueError(
                f"{type(self).__qualname__} takes logits, as probabilities need the sum over all classes. Drop the "
                f"softmax at the end of the model. Received: from_logits={from_logits!r}."
            )
        super().__init__(from_logits=True, ignore_class=ignore_class, reduction=reduction, name=name, dtype=dtype)

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the config of Keras' loss, for files."""
        return dict(config)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the loss; for logits in one tensor, Keras computes it."""
        if not _is_cut_along_classes(y_pred):
            return super().__call__(y_true, whole_tensor(y_pred), sample_weight)
        labels = _labels(y_true, y_pred)
        mask = getattr(y_pred, "_keras_mask", None)
        if self.ignore_class is not None:
            counted = ops.not_equal(labels, self.ignore_class)
            mask = counted if mask is None else ops.logical_and(mask, counted)
            values = self._values(ops.where(counted, labels, ops.zeros_like(labels)), y_pred, counted)
            values = ops.where(counted, values, ops.zeros_like(values))
        else:
            values = self._values(labels, y_pred)
        if mask is not None:
            values._keras_mask = mask
        return _Given(name=self.name, reduction=self.reduction, dtype=self.dtype)(values, values, sample_weight)

    def _values(self, labels: Any, logits: SplitTensor, counted: Any = None) -> Any:
        """Returns the loss of each label."""
        shards = logits.shards
        copies = [shards.copy(labels)] + ([] if counted is None else [shards.copy(counted)])
        reduced: list[list[Any]] = []
        for i, piece, *own in zip(shards.owned, logits.pieces, *copies, strict=True):
            reduced.append(shards.run(i, self._reduced(*_range_of(logits, i)), piece, *own))
        # Only one function uses each number, the one that combines them, so no gradients are added up.
        flat = [number for numbers in zip(*shards.gather_all(reduced), strict=True) for number in numbers]
        return shards.parts.run(shards.main_part, _loss_of(sum(_range_of(logits, shards.count - 1))), labels, *flat)

    def _reduced(self, start: int, size: int) -> Callable[..., Any]:
        def reduced(piece: Any, labels: Any, counted: Any = None) -> list[Any]:
            piece = ops.cast(piece, self.dtype)
            if counted is not None:
                # As in Keras, logits of ignored labels get no gradient, even if they are infinite.
                piece = ops.where(ops.expand_dims(counted, -1), piece, ops.zeros_like(piece))
            # A constant: the loss does not depend on it, because `_loss_of` rescales the sums of exponentials.
            largest = ops.stop_gradient(ops.max(piece, axis=-1, keepdims=True))
            # All logits of a piece may be minus infinity, to rule out its classes.
            origin = ops.where(ops.isfinite(largest), largest, ops.zeros_like(largest))
            total = ops.sum(ops.exp(ops.subtract(piece, origin)), axis=-1)
            held = ops.logical_and(labels >= start, labels < start + size)
            local = ops.where(held, labels - start, ops.zeros_like(labels))
            own = _at(piece, local)
            return [ops.squeeze(largest, -1), total, ops.where(held, own, ops.zeros_like(own))]

        return reduced


@layer_api.saved_as(keras.metrics.SparseCategoricalAccuracy)
class VocabParallelSparseCategoricalAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """``keras.metrics.SparseCategoricalAccuracy`` of logits in pieces along the classes.

    Only the largest logit of each piece, and its class, are communicated. Of equal logits the first counts, as in
    Keras. For logits in one tensor, and in files, it is Keras' metric.

    Args:
        name: of the metric.
        dtype: of its result.

    Shapes:
        As in `VocabParallelSparseCategoricalCrossentropy`.

    Example:

        loss = keras_ext.VocabParallelSparseCategoricalCrossentropy()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("adam", loss, metrics=[keras_ext.VocabParallelSparseCategoricalAccuracy()])

    Raises:
        ValueError: labels of another shape.
    """

    def __init__(self, name: str = "sparse_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._fn = _matches

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the config of Keras' metric, for files."""
        return dict(config)


class _Given(keras.losses.Loss):
    """Applies Keras' masks, weights and reduction to losses that are already computed."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred


def _loss_of(classes: int) -> Callable[..., Any]:
    """Returns the loss as a function of the labels and the shards' numbers: maxima, then sums, then labels' logits."""

    def loss(labels: Any, *numbers: Any) -> Any:
        count = len(numbers) // 3
        maxima, totals, own = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
        largest = ops.stop_gradient(ops.max(ops.stack(maxima), axis=0))
        origin = ops.where(ops.isfinite(largest), largest, ops.zeros_like(largest))
        scaled = [
            ops.multiply(total, ops.exp(ops.stop_gradient(ops.subtract(each, origin))))
            for each, total in zip(maxima, totals, strict=True)
        ]
        values = ops.subtract(ops.add(ops.log(add_up(*scaled)), origin), add_up(*own))
        known = ops.logical_and(labels >= 0, labels < classes)
        # NaN is multiplied, so that the gradients are NaN as well.
        return ops.multiply(values, ops.where(known, ops.ones_like(values), ops.full_like(values, float("nan"))))

    return loss


def _matches(y_true: Any, y_pred: Any) -> Any:
    """Returns 1 for each label whose logit is the largest, 0 for others."""
    if not _is_cut_along_classes(y_pred):
        return keras.metrics.sparse_categorical_accuracy(y_true, whole_tensor(y_pred))
    shards = y_pred.shards
    found: list[list[Any]] = []
    for i, piece in zip(shards.owned, y_pred.pieces, strict=True):
        largest = _largest_from(_range_of(y_pred, i)[0], None if shards.between is None else y_pred.shape[-1])
        found.append(shards.run(i, largest, piece))
    values, classes = zip(*shards.gather_all(found), strict=True)
    predicted = ops.cast(shards.parts.run(shards.main_part, _first_largest, *values, *classes), "int64")
    matches = ops.cast(ops.equal(_labels(y_true, y_pred), predicted), keras.config.floatx())
    return ops.squeeze(matches, -1) if len(matches.shape) > 1 and matches.shape[-1] == 1 else matches


def _largest_from(start: int, as_numbers_below: int | None = None) -> Callable[[Any], list[Any]]:
    """Returns a function that finds a piece's largest logit and its class; as floats, given the number of classes."""

    def largest(piece: Any) -> list[Any]:
        index = ops.argmax(piece, axis=-1)
        # Not `ops.max`, which may return a zero of the other sign than the one at `index`.
        found = [_at(piece, index), ops.cast(index, "int64") + start]
        if as_numbers_below is None:
            return found
        # In one dtype, in which both are exact, they are sent as one message.
        is_single = as_numbers_below <= _EXACT_IN_FLOAT32 and keras.backend.standardize_dtype(piece.dtype) != "float64"
        return [ops.cast(each, "float32" if is_single else "float64") for each in found]

    return largest


def _first_largest(*found: Any) -> Any:
    """Returns the class of the largest logit, given the shards' largest logits, then their classes."""
    values, classes = ops.stack(found[: len(found) // 2], axis=-1), ops.stack(found[len(found) // 2 :], axis=-1)
    return _at(classes, ops.argmax(values, axis=-1))


def _at(values: Any, index: Any) -> Any:
    """Returns the value at ``index`` in each row of ``values``, without the copy of all values that Keras makes."""
    flat = ops.reshape(ops.cast(index, "int64"), (-1,))
    flat = ops.add(ops.multiply(ops.arange(ops.size(flat), dtype="int64"), values.shape[-1]), flat)
    return ops.reshape(ops.take(ops.reshape(values, (-1,)), flat), ops.shape(index))


def _is_cut_along_classes(y_pred: Any) -> bool:
    return isinstance(y_pred, SplitTensor) and y_pred.dim == y_pred.ndim - 1 and y_pred.shards.count > 1


def _labels(y_true: Any, y_pred: SplitTensor) -> Any:
    """Returns the labels as whole numbers, one for each row of ``y_pred``."""
    labels = ops.cast(ops.convert_to_tensor(y_true), "int64")
    if len(labels.shape) == y_pred.ndim and labels.shape[-1] == 1:
        labels = ops.squeeze(labels, -1)
    if len(labels.shape) != y_pred.ndim - 1:
        raise ValueError(
            f"Labels are class numbers, one for each row of logits, here of {y_pred.ndim - 1} dimensions. Turn one-hot "
            f"labels into numbers with keras.ops.argmax. Received: labels of shape {tuple(labels.shape)} for logits of "
            f"shape {y_pred.shape}."
        )
    return labels


def _range_of(logits: SplitTensor, index: int) -> tuple[int, int]:
    """Returns the first class of a piece, and the number of its classes."""
    start, end = even_bounds(logits.shape[-1], logits.shards.count)[index : index + 2]
    return start, end - start
