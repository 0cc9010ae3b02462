"""The stages of a pipeline, with their devices and processes. Tested with the model."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from keras_ext.pipeline.row_counts import RowCounts
from keras_ext.pipeline.stage import Stage
from strategies import layer_api
from strategies.schedules import Traffic


@dataclass(frozen=True)
class PlacedStages:
    """The stages of a model, each on a part of the replica.

    Attributes:
        stages: the stages of the model.
        outputs: the model's outputs, Keras' tensors.
        parts: the parts of the replica.
        positions: the position of each stage on the axis "pipe".
    """

    stages: Sequence[Stage]
    outputs: Sequence[Any]
    parts: layer_api.ReplicaParts
    positions: Sequence[int]

    @functools.cached_property
    def devices(self) -> tuple[int | None, ...]:
        """The part of each stage; None for a stage that another process computes."""
        coordinates = self.parts.coordinates
        return tuple(
            self.parts.local_part({**coordinates, "pipe": frozenset([position])}) for position in self.positions
        )

    @functools.cached_property
    def process_of(self) -> tuple[int, ...]:
        """The process of each stage, as its position along "pipe"."""
        return tuple(self.parts.process_at("pipe", position) for position in self.positions)

    @functools.cached_property
    def row_counts(self) -> RowCounts:
        """The dimensions of stages' outputs that follow from the number of rows of a micro-batch."""
        return RowCounts(self.stages)

    @property
    def crosses(self) -> bool:
        """True if stages are in several processes."""
        return self.parts.crosses("pipe")

    @property
    def has_last(self) -> bool:
        """True if this process computes the last stage, and the loss."""
        return self.devices[-1] is not None

    def part(self, k: int) -> int:
        """Returns the part of a stage that this process computes.

        Raises:
            RuntimeError: another process computes it.
        """
        part = self.devices[k]
        if part is None:
            raise RuntimeError(f"Another process computes stage {k}.")
        return part

    def traffic(self, outputs_to: Collection[int]) -> Traffic:
        """Returns the values that processes send each other; the model's outputs go to the processes `outputs_to`."""
        return Traffic.create(
            [list(map(id, stage.outputs)) for stage in self.stages],
            [list(map(id, stage.inputs)) for stage in self.stages],
            list(map(id, self.outputs)),
            self.process_of,
            outputs_to,
        )

    def check(self) -> None:
        """Refuses layers with state that several processes would have to update.

        Raises:
            ValueError: stages are in several processes, and a layer has metrics, or has state that changes with each
                call and is called in several processes.
        """
        called_in: dict[int, set[int]] = {}
        for stage, process in zip(self.stages, self.process_of, strict=True):
            for layer in stage.layers:
                if self.crosses and layer.metrics:
                    raise ValueError(
                        f"The layer {layer.name!r} keeps metrics of its own, which a pipeline over several processes "
                        "does not combine. Give them to compile(metrics=...), or use add_loss. Received: "
                        f"{layer!r}."
                    )
                for inner in layer._flatten_layers():
                    called_in.setdefault(id(inner), set()).add(process)
                    # In a frozen layer, only random seeds change. Frozen weights do not change, and are not in
                    # `_non_trainable_variables`.
                    changing = inner._seed_generators or (inner.trainable and inner._non_trainable_variables)
                    if len(called_in[id(inner)]) > 1 and changing:
                        raise ValueError(
                            f"The layer {inner.name!r} changes as it is called (statistics, or seeds of draws), and is "
                            "called in stages of several processes, which would have it change differently. Use a "
                            f"layer for each call, or cut the model elsewhere. Received: {layer!r}."
                        )
