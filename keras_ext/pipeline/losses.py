"""Computes the losses of micro-batches, and those of the batch from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.microbatch import Microbatches
from strategies import layer_api


class BatchLoss:
    """The loss of a batch that is computed in micro-batches.

    Args:
        model: a `PipelineModel`, compiled, and built.
        cut_up: the micro-batches.
        batch: inputs, labels, and sample weights or None.
    """

    def __init__(self, model: Any, cut_up: Microbatches, batch: tuple[Any, Any, Any]) -> None:
        self._model = model
        self._num_rows = cut_up.num_rows
        self._cut_up = cut_up
        self._batch = batch
        self._pieces = list(zip(*(cut_up.split(each) for each in batch), strict=True))
        self._shares = [layer_api.as_constant(weight) for weight in cut_up.weights()]
        self._losses: list[Any] = []

    def begin(self, masks: Any) -> None:
        """Sets the masks of the model's outputs for the whole batch, in the outputs' structure, or None."""
        self._masks = masks
        self._microbatch_losses = self._cut_into(self._shares)

    def compute(
        self, microbatches: Sequence[int], predicted: Sequence[Sequence[Any]], added: Sequence[Sequence[Any]]
    ) -> Any:
        """Returns one micro-batch's term of the loss, or the loss of the whole batch if given all micro-batches.

        Args:
            microbatches: the numbers of the micro-batches: one, or all.
            predicted: for each micro-batch, the model's outputs.
            added: for each micro-batch, the losses that layers add.

        Raises:
            ValueError: the model's loss is not a scalar.
        """
        outputs = [self._model._packed(each) for each in predicted]
        if len(microbatches) == 1:
            [i] = microbatches
            [own_added] = added
            return self._computed(i, self._pieces[i], outputs[0], self._as_means(own_added, self._shares[i]))
        means = (self._as_means(own, share) for own, share in zip(added, self._shares, strict=True))
        weighed = [
            [loss * ops.cast(share, loss.dtype) for loss in own] for own, share in zip(means, self._shares, strict=True)
        ]
        self._microbatch_losses = self._cut_into([layer_api.as_constant(1.0)])
        sizes = {self._num_rows} if isinstance(self._num_rows, int) else ()
        with layer_api.split_into(1), layer_api.in_microbatches(self._batch, sizes):
            joined = self._cut_up.join(outputs)
            return self._computed(0, self._batch, joined, [sum(own[1:], own[0]) for own in zip(*weighed, strict=True)])

    def _computed(self, i: int, batch: Sequence[Any], predicted: Any, added: Sequence[Any]) -> Any:
        model, (x, y, sample_weight) = self._model, batch
        with model._thread.showing(added, self._microbatch_losses.compiled_loss(i)):
            loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=True)
        _check_is_number(loss)
        self._losses.append(loss * ops.cast(self._microbatch_losses.shares[i], loss.dtype))
        return self._losses[-1] if model.optimizer is None else model.optimizer.scale_loss(self._losses[-1])

    def _as_means(self, added: Sequence[Any], share: Any) -> list[Any]:
        return [layer_api.as_mean(loss, share) for loss in added]

    def _cut_into(self, shares: Sequence[Any]) -> MicrobatchLosses:
        _, labels, sample_weight = self._batch
        return MicrobatchLosses(self._model, labels, self._masks, sample_weight, shares)

    def update(self) -> None:
        """Updates the model's loss trackers with the losses of the batch."""
        self._microbatch_losses.update(self._num_rows)
        total = layer_api.as_mean_over_rows(sum(self._losses[1:], self._losses[0]))
        self._model._loss_tracker.update_state(total, sample_weight=self._num_rows)


def check_on_all_ranks(model: Any, batch: tuple[Any, Any, Any], training: bool) -> None:
    """Computes only the shapes of a batch's loss and metrics, on processes with and without the last stage.

    So errors in labels, sample weights, losses and metrics are raised in all processes, before one waits for another.

    Args:
        model: a `PipelineModel`, compiled.
        batch: inputs, labels, and sample weights or None; tensors, or TensorFlow's specs of them.
        training: whether the loss will be differentiated.

    Raises:
        ValueError: the model's loss is not a scalar, in training. Other errors are those of the loss and the metrics.
    """
    added: list[Any] = []
    flat = layer_api.shapes_of(model._standardize_inputs, batch[0])
    if model._compile_loss is None:
        predicted, added = layer_api.shapes_of(model.computed_with_losses, flat)
    else:
        # Uses the layers' own shape inference, as when the model was created.
        predicted = model.compute_output_spec(keras.tree.pack_sequence_as(model.input, flat))

    def loss_of(batch: tuple[Any, Any, Any], predicted: Any, added: list[Any]) -> Any:
        x, y, sample_weight = batch
        with model._thread.showing(added):
            return model._compute_loss(x, y, predicted, sample_weight, training)

    def metrics_of(batch: tuple[Any, Any, Any], predicted: Any) -> Any:
        x, y, sample_weight = batch
        return model.compute_metrics(x, y, predicted, sample_weight)

    loss = layer_api.shapes_of(loss_of, batch, predicted, added)
    if training:
        _check_is_number(loss)
    layer_api.shapes_of(metrics_of, batch, predicted)


def _check_is_number(loss: Any) -> None:
    if len(loss.shape):
        raise ValueError(
            "A pipeline adds up losses of micro-batches, which are numbers: give the loss a reduction. "
            f"Received: a loss of shape {tuple(loss.shape)}."
        )


class MicrobatchLosses:
    """Computes losses of micro-batches that, weighted by their rows, add up to the losses of the batch.

    Means over rows already do so. Sums do not, and neither do means over unmasked entries or over sample weights: these
    means are computed as sums, divided by the count or total weight of the batch, and not of the micro-batch.

    Args:
        model: a compiled and built model.
        y: the batch's labels, as given to the model.
        masks: the masks of the model's outputs for the whole batch, in the outputs' structure, or None.
        sample_weight: the sample weights as given to the model, or None.
        shares: each micro-batch's share of the batch's rows.
    """

    def __init__(self, model: Any, y: Any, masks: Any, sample_weight: Any, shares: Sequence[Any]) -> None:
        #: Each micro-batch's share of the batch's rows.
        self.shares = shares
        self._compiled = compiled = getattr(model, "_compile_loss", None)
        # Keras' own list of the losses to compute; `_divisors` has the divisor of each.
        self._flat: list[Any] = [] if compiled is None else compiled._flat_losses or []
        labels = keras.tree.flatten(y)
        # Labels whose structure does not match the losses are ignored here; Keras raises an error for them.
        labels = labels if len(labels) == len(self._flat) else [None] * len(self._flat)
        self._divisors = [
            self._divisor(entry, own, masks, sample_weight) for entry, own in zip(self._flat, labels, strict=True)
        ]
        # Keras' trackers of losses, one per output if there are several, each with its values of all micro-batches.
        self._seen: list[tuple[Any, list[Any]]] = [(metric, []) for metric in compiled.metrics] if compiled else []

    def _divisor(self, entry: Any, labels: Any, masks: Any, sample_weight: Any) -> Any:
        """Returns the divisor of the sum of one loss over the whole batch; None for a mean over rows."""
        reduction = getattr(entry.loss, "reduction", "mean")
        if reduction == "sum":
            return 1.0
        if reduction in (None, "none"):
            # Computed unchanged; the caller refuses a result that is not a scalar.
            return None
        ignored = getattr(entry.loss, "ignore_class", None)
        weight = _at(sample_weight, entry.path) if keras.tree.is_nested(sample_weight) else sample_weight
        counted = [
            _at(masks, entry.path),
            None if ignored is None or labels is None else ops.not_equal(labels, ops.cast(ignored, labels.dtype)),
            weight if reduction == "mean_with_sample_weight" else None,
        ]
        numbers = [ops.cast(each, "float32") for each in counted if each is not None]
        if not numbers:
            return None
        product = numbers[0]
        for each in numbers[1:]:
            # Keras allows a last dimension of 1 to be left out.
            while len(each.shape) > len(product.shape):
                each = ops.squeeze(each, -1)
            while len(each.shape) < len(product.shape):
                each = ops.expand_dims(each, -1)
            product = product * each
        return layer_api.sum_over_replicas(ops.sum(product))

    def compiled_loss(self, i: int) -> Any:
        """Returns a copy of Keras' compiled loss for micro-batch `i`, which updates no metric.

        It is a copy because other replicas, in their own threads, use theirs at the same time.
        """
        if self._compiled is None:
            return None
        own = _shallow_copy(self._compiled)
        own._flat_losses = [
            entry if divisor is None else entry._replace(loss=_divided(entry.loss, divisor, self.shares[i]))
            for entry, divisor in zip(self._flat, self._divisors, strict=True)
        ]
        own._metrics = [_Seen(seen) for _, seen in self._seen]
        return own

    def update(self, num_rows: Any) -> None:
        """Updates Keras' trackers of losses with the losses of the batch.

        Args:
            num_rows: the number of rows of the batch; int, or a tensor if it is not known at tracing. As in Keras, only
                an int is used as a weight.
        """
        for metric, seen in self._seen:
            total = sum(value * ops.cast(share, value.dtype) for value, share in zip(seen, self.shares, strict=True))
            metric.update_state(total, sample_weight=num_rows if isinstance(num_rows, int) else None)


class _Seen:
    """A placeholder for Keras' tracker of a loss, which appends the values it is updated with to a list."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def update_state(self, value: Any, sample_weight: Any = None) -> None:
        del sample_weight
        self._values.append(value)


def _divided(loss: Any, divisor: Any, share: Any) -> Callable[..., Any]:
    """Returns the loss as a sum over the micro-batch, divided by `divisor` and by the micro-batch's share of the rows.

    The caller multiplies by the share again.
    """
    summed = _shallow_copy(loss)
    summed.reduction = "sum"

    def computed(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        value = summed(y_true, y_pred, sample_weight)
        return ops.divide_no_nan(value, ops.cast(divisor * share, value.dtype))

    return computed


def _shallow_copy(made: Any) -> Any:
    """Returns a new object with the same class and attributes; `copy.copy` would serialize it through Keras."""
    own = object.__new__(type(made))
    own.__dict__.update(made.__dict__)
    return own


def _at(structure: Any, path: Sequence[Any]) -> Any:
    for key in path if structure is not None else ():
        structure = structure[key]
    return structure
