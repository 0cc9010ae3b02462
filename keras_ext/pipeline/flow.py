"""The forward pass of a pipeline whose stages are in several processes: each computes its own, micro-batch by
micro-batch, and sends on what others take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_ext.pipeline.exchange import Exchange, Gates, Ledger
from keras_ext.pipeline.messages import Traffic
from keras_ext.pipeline.schedule import Action, Kind
from keras_ext.pipeline.stage import Stage
from strategies import layer_api


@dataclass(frozen=True)
class Flowed:
    """The result of a forward pass.

    Attributes:
        values: for each micro-batch by the `id` of Keras' tensors; the model's outputs where they were sent to.
        added: for each micro-batch what layers have added to the loss: all in the process of the last stage.
        penalties: of weights: all in the process of the last stage.
    """

    values: Sequence[Mapping[int, Any]]
    added: Sequence[Sequence[Any]]
    penalties: Sequence[Any]


def flowed(
    stages: Sequence[Stage],
    outputs: Sequence[Any],
    traffic: Traffic,
    parts: layer_api.ReplicaParts,
    devices: Sequence[int | None],
    penalties: Sequence[Callable[[], list[Any]]],
    inputs: Sequence[Mapping[int, Any]],
    training: bool | None,
) -> Flowed:
    """Computes the stages of this process.

    Args:
        stages: of the model.
        outputs: of the model, Keras' tensors.
        traffic: between the processes.
        parts: of the replica.
        devices: the part of each stage; None if another process holds it.
        penalties: of weights, by stage.
        inputs: for each micro-batch the model's inputs, by the `id` of Keras' tensors.
        training: as layers take it.
    """
    ledger = Ledger([dict(each) for each in inputs])
    # Devices compute at the same time: at each tick the next micro-batch in each stage.
    ticks = range(len(stages) + len(inputs) - 1)
    order = [Action(k, Kind.FORWARD, t - k) for t in ticks for k in range(len(stages)) if 0 <= t - k < len(inputs)]
    gates = Gates([[action for action in order if devices[action.stage] == part] for part in parts.owned])
    exchange = Exchange(
        stages, outputs, traffic, parts, devices, ledger, lambda action: gates.of_receive(devices[action.stage], action)
    )
    for k, part in enumerate(devices):
        if part is not None:
            with parts.on(part):
                ledger.penalties[k] = penalties[k]()
    exchange.penalties()
    for action in order:
        k, i = action.stage, action.microbatch
        stage, part = stages[k], devices[k]
        if part is not None:
            added: list[Any] = []
            with parts.on(part):
                made = stage.compute([ledger.values[i][id(tensor)] for tensor in stage.inputs], training, added)
            ledger.values[i].update(zip(map(id, stage.outputs), made, strict=True))
            ledger.added[k, i] = added
            gates.note(part, made)
        exchange.after(action)
    return Flowed(
        ledger.values,
        [[loss for k in range(len(stages)) for loss in ledger.added.get((k, i), [])] for i in range(len(inputs))],
        [each for _, own in sorted(ledger.penalties.items()) for each in own],
    )
