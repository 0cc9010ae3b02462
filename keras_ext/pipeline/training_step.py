"""The training step of a pipeline model: forward and backward passes in the order of its schedule, and the update.

The contract is tested in ``tests/keras_ext/pipeline/test_model.py`` and ``tests/keras_ext/pipeline/test_parity.py``.
"""

from __future__ import annotations

import warnings
from typing import Any

from keras import ops

from keras_ext.pipeline.executor import Run
from keras_ext.pipeline.gradients import whole_gradients
from keras_ext.pipeline.losses import BatchLoss, check_on_all_ranks
from keras_ext.pipeline.microbatch import Microbatches
from keras_ext.pipeline.stage import penalties_of
from strategies import layer_api


def train_on_microbatches(model: Any, cut_up: Microbatches, x: Any, y: Any, sample_weight: Any) -> Any:
    """Runs the forward and backward passes of a model's schedule, updates its weights, and returns the logs.

    Args:
        model: a `PipelineModel`, compiled.
        cut_up: the micro-batches of the batch.
        x: the inputs.
        y: the labels.
        sample_weight: the weights of the rows, or None.
    """
    if model._compile_loss is not None and not model._compile_loss.built:
        _build_loss(model, (x, y, sample_weight))
    flat = model._standardize_inputs(x)
    if model._placed.crosses:
        check_on_all_ranks(model, (x, y, sample_weight), training=True)
    inputs = [dict(zip(map(id, model.inputs), each, strict=True)) for each in cut_up.split(flat)]
    loss = BatchLoss(model, cut_up, (x, y, sample_weight)) if model._placed.has_last else None
    masks = model._forward.masks(flat, model.num_microbatches)
    if loss is not None:
        loss.begin(None if masks is None else model._packed(masks))
    weights = [stage.trainable_variables for stage in model._stages]
    run = Run(
        model._placed,
        model.schedule(cut_up.number),
        [[variable.value for variable in own] for own in weights],
        penalties_of(model._stages),
        inputs,
        model._remat,
        model._reshard,
        model._on_action if model._parts.replica == 0 else None,
    )
    with layer_api.split_into(cut_up.number):
        gradients = run.train(None if loss is None else loss.compute)
    if loss is not None:
        loss.update()
    if model.trainable_weights:
        found, variables = zip(
            *whole_gradients(model._placed, model.trainable_weights, weights, gradients), strict=True
        )
        terms = layer_api.for_optimizer(model.optimizer, found, variables)
        model.optimizer.apply_gradients(zip(terms, variables, strict=True))
    else:
        warnings.warn("The model does not have any trainable weights.", stacklevel=2)
    if loss is not None:
        predicted = [model._packed([each[id(tensor)] for tensor in model.outputs]) for each in run.values]
        logs = model.compute_metrics(x, y, cut_up.join(predicted), sample_weight=sample_weight)
    else:
        # The metrics of the last stage. Reading them is a collective.
        logs = model.get_metrics_result()
    return (
        logs
        if model._on_action is None
        else {
            **logs,
            # Ready once all actions have been recorded. Marked as constant, as it does not depend on rows.
            "recorded": layer_api.as_constant(sum(run.recorded, ops.zeros(()))),
        }
    )


def _build_loss(model: Any, data: Any) -> None:
    """Builds the loss and the metrics before the step.

    If a layer needs concrete values, it builds only the loss, by the graph's outputs.
    """
    try:
        model._symbolic_build(data_batch=data)
    # Layers, losses and metrics that only run eagerly, with run_eagerly=True, raise any exception type.
    except Exception:
        # Processes without the last stage could not create its metrics later.
        if model._placed.crosses:
            raise
        model._compile_loss.build(data[1], model.output)
