"""The memory of a model on meshes, with stages that begin where the measured times of its layers say.

Its contract is tested in ``tests/keras_ext/planning/test_plan.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_ext.memory_plan import memory_plan
from keras_ext.pipeline.graph_nodes import nodes_of
from keras_ext.pipeline.layer_costs import OPEN_SIZES
from keras_ext.pipeline.model import PipelineModel
from keras_ext.pipeline.model_graph import graph_of
from keras_ext.rematerialization import rematerialize
from keras_ext.tensor.parallelize import parallelize
from strategies.planning import MeasuredLayout, MeasuredStep, stage_starts


class PlannedBytes:
    """The bytes of layouts, each counted once.

    Attributes:
        step: what was measured, which says where stages begin; None before.
    """

    def __init__(self, make_model: Callable[[], Any], batch_size: int, batch: tuple[Any, Any] | None) -> None:
        self.step: MeasuredStep | None = None
        self._make_model = make_model
        self._batch_size = batch_size
        self._batch = batch
        self._known: dict[MeasuredLayout, int] = {}

    def bytes_of(self, layout: MeasuredLayout) -> int:
        """Returns the bytes of the device with the most."""
        if layout not in self._known:
            self._known[layout] = memory_plan(
                functools.partial(self._made, layout),
                batch_size=self._batch_size,
                mesh=layout.mesh,
                shard=layout.shard,
                sequence_length=self._open_size(),
            ).together
        return self._known[layout]

    def may_recompute(self) -> bool:
        """Returns True if the model has blocks that :func:`rematerialize` can compute again."""
        try:
            self.bytes_of(MeasuredLayout(recompute=True))
        except ValueError:
            return False
        return True

    def _open_size(self) -> int:
        """Returns the size of dims that a model leaves open: that of the batch, or that of the measured zeros."""
        leaves = [] if self._batch is None else keras.tree.flatten(self._batch[0])
        return next((leaf.shape[1] for leaf in leaves if leaf.ndim > 1), OPEN_SIZES[0])

    def _made(self, layout: MeasuredLayout) -> Any:
        """Returns the model as the layout has it; the stages begin where the layers' times say."""
        model = self._make_model()
        if layout.num_stages == 1 or self.step is None:
            return rematerialize(model) if layout.recompute else model
        if layout.num_tensor > 1:
            model = parallelize(model)
        names = [node.name for node in nodes_of(graph_of(model))]
        starts = stage_starts(self.step, layout.num_stages)
        return PipelineModel(
            model,
            layout.num_stages,
            num_microbatches=layout.num_microbatches,
            schedule=layout.schedule,
            # A split model may have other calls than the whole one.
            partition=[names[k] for k in starts[1:]] if len(names) == len(self.step.layers) else "parameters",
            remat="all" if layout.recompute else None,
        )
