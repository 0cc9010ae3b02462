"""Sends and receives messages between the processes that hold the stages of a pipeline.

All processes iterate over all actions in the same order. The process that holds the stage of an action computes it and
sends its results; the processes that use them receive at the same point of the order. So both ends of each message, and
all messages between two processes, are traced in the same order, as collectives between GPUs require.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from keras import ops

from keras_ext.pipeline.batch_state import BatchState, ControlDependencies
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.row_counts import Multiples
from keras_ext.tensor_metadata import MASK, metadata_of, set_metadata
from strategies import layer_api
from strategies.schedules import Action, Kind

#: A value that a stage has computed from a micro-batch: "outputs", "masks", "logits" or "added", and its number.
_Item = tuple[str, int]
#: The values whose gradients a process receives, by process and key, each with the action that uses it, or None.
_Returned = dict[int, dict[Hashable, Action | None]]


class Exchange:
    """The messages of one batch. Create it where the function is traced.

    Args:
        placed: the stages.
        state: contains the values to send, and gets the received ones.
        dependencies: the control dependencies of this process' devices.
        outputs_to_all: True to send the model's outputs to all processes, False to send them to that of the last stage.
        training: the `training` argument of layers.
        backward: the kind of the passes that compute the gradients of a stage's inputs.
    """

    def __init__(
        self,
        placed: PlacedStages,
        state: BatchState,
        dependencies: ControlDependencies,
        outputs_to_all: bool = False,
        training: bool | None = True,
        backward: Kind = Kind.BACKWARD,
    ) -> None:
        self._placed = placed
        self._stages = placed.stages
        self._outputs = {id(tensor) for tensor in placed.outputs}
        self._traffic = placed.traffic({*placed.process_of} if outputs_to_all else {placed.process_of[-1]})
        self._state = state
        self._dependencies = dependencies
        self._messages = layer_api.StageMessages(placed.parts)
        self._training = training
        self._backward = backward
        self._inputs = [dict(own) for own in state.values]
        # Micro-batches of equal shapes have equal descriptions: only the first of them is described.
        inputs = [_shapes(own) for own in state.values]
        self._alike = [inputs.index(own) for own in inputs]
        self._agreed_values: dict[Hashable, Any] = {}
        self._penalties: dict[int, list[tuple[str, int, int]]] = {}

    def after(self, action: Action) -> None:
        """Sends the results of an action to the processes that use them, or receives them."""
        if action.kind is Kind.FORWARD:
            self.forward(action)
        elif action.kind is self._backward:
            self.backward(action)

    # ---- forward

    def forward(self, action: Action) -> None:
        """Sends the results of a stage's forward pass to the processes that use them, or receives them."""
        k, i = action.stage, action.microbatch
        source, own = self._traffic.process_of[k], self._messages.position
        described = self._described(action)
        for process in self._takers(k, described):
            items = [item for item in described if self._is_for(process, k, item)]
            if source == own:
                made = self._made(k, i)
                sizes = self._sizes(i, [described[item] for item in items])
                self._messages.send(self._part(k), process, [made[item] for item in items], sizes)
            elif process == own:
                taker, wanted = self._first_taker(action), [described[item] for item in items]
                received = self._messages.receive(
                    self._part(taker.stage),
                    source,
                    wanted,
                    self._dependencies_of_receive(taker),
                    self._sizes(i, wanted),
                )
                self._take(k, i, dict(zip(items, received, strict=True)))

    def _takers(self, k: int, described: Collection[_Item]) -> list[int]:
        """Returns the processes that use a result of a stage's forward pass."""
        takers = set(self._traffic.forward[k])
        if self._traffic.process_of[k] != self._traffic.last and any(name == "added" for name, _ in described):
            takers.add(self._traffic.last)
        return sorted(takers)

    def _is_for(self, process: int, k: int, item: _Item) -> bool:
        name, n = item
        if name == "added":
            return process == self._traffic.last
        tensor = id(self._stages[k].outputs[n])
        if tensor not in self._traffic.forward[k].get(process, ()):
            return False
        return name != "logits" or (process == self._traffic.last and tensor in self._outputs)

    def _first_taker(self, action: Action) -> Action:
        """Returns the first forward action of this process that uses a result of `action`; else its last stage's."""
        sent = self._traffic.forward[action.stage].get(self._messages.position, ())
        stages = [
            stage.index
            for stage, part in zip(self._stages, self._placed.devices, strict=True)
            if part is not None and any(id(tensor) in sent for tensor in stage.inputs)
        ]
        own = [k for k, part in enumerate(self._placed.devices) if part is not None]
        return Action(min(stages, default=max(own)), Kind.FORWARD, action.microbatch)

    def _described(self, action: Action) -> dict[_Item, layer_api.Description]:
        """Returns the descriptions of the results of a forward action, as its process broadcasts them."""
        k = action.stage

        def describe() -> list[Any]:
            made = self._made(k, action.microbatch).items()
            return [
                [*item, *layer_api.Description.from_tensor(each, self._multiples(k, item, each))] for item, each in made
            ]

        agreed = self._agreed(self._key(action), self._traffic.process_of[k], describe)
        return {(name, n): layer_api.Description.from_json(each) for name, n, *each in agreed}

    def _multiples(self, k: int, item: _Item, value: Any) -> Multiples:
        """Returns each dimension's multiple of the number of rows; empty if it is not needed or unknown."""
        name, n = item
        if name == "added" or None not in value.shape:
            return ()
        found = self._placed.row_counts.multiples(self._inputs[0], self._training)
        return found.get(("masks" if name == "masks" else "outputs", id(self._stages[k].outputs[n])), ())

    def _sizes(self, i: int, described: Sequence[layer_api.Description]) -> dict[tuple[int, int], Any]:
        """Returns the sizes that follow from the number of rows of a micro-batch, by tensor and dimension."""
        wanted = {
            (n, dim): multiple
            for n, each in enumerate(described)
            for dim, (size, multiple) in enumerate(zip(each.shape, each.multiples, strict=False))
            if size is None and multiple is not None
        }
        if not wanted:
            return {}
        rows = ops.shape(next(value for value in self._inputs[i].values() if value is not None))[0]
        return {key: rows * multiple for key, multiple in wanted.items()}

    def _made(self, k: int, i: int) -> dict[_Item, Any]:
        """Returns the values that a stage of this process has computed from a micro-batch."""
        tensors = [id(tensor) for tensor in self._stages[k].outputs]
        values = [self._state.values[i][tensor] for tensor in tensors]
        found = {
            "outputs": values,
            "masks": metadata_of(values, MASK),
            "logits": [self._state.logits.get((i, tensor)) for tensor in tensors],
            "added": self._state.added.get((k, i), []),
        }
        return {(name, n): each for name, own in found.items() for n, each in enumerate(own) if each is not None}

    def _take(self, k: int, i: int, received: Mapping[_Item, Any]) -> None:
        for (name, n), value in received.items():
            tensor = id(self._stages[k].outputs[n]) if name != "added" else 0
            if name == "outputs":
                self._state.values[i][tensor] = value
                set_metadata([value], MASK, [received.get(("masks", n))])
            elif name == "logits":
                self._state.logits[i, tensor] = value
            elif name == "added":
                self._state.added.setdefault((k, i), []).append(value)

    # ---- backward

    def backward(self, action: Action) -> None:
        """Sends the gradients that a stage completes to the processes that computed the values, or receives them."""
        k, i = action.stage, action.microbatch
        returned = self._returned(k, i)
        if returned:
            self._exchange_gradients(self._key(action), k, returned)

    def _returned(self, k: int, i: int) -> _Returned:
        """Returns the values whose gradients are sent after a backward pass, as `_Returned`."""
        found: dict[int, dict[Hashable, Action | None]] = {}
        last, source = self._traffic.last, self._traffic.process_of[k]
        for j, stage in enumerate(self._stages):
            process = self._traffic.process_of[j]
            if process == source:
                continue
            takes = Action(j, self._backward, i)
            own: dict[Hashable, Action | None] = {}
            for (name, n), described in self._described(Action(j, Kind.FORWARD, i)).items():
                tensor = 0 if name == "added" else id(stage.outputs[n])
                if name == "outputs" and described.may_have_gradient:
                    if tensor in self._traffic.backward[k].get(process, ()):
                        own[i, tensor] = takes
                elif k == len(self._stages) - 1 and source == last:
                    if name == "logits" and self._is_for(last, j, (name, n)):
                        own[i, tensor, "logits"] = takes
                    elif name == "added":
                        own[i, "added", j, n] = takes
            if own:
                found.setdefault(process, {}).update(own)
        return found

    def _exchange_gradients(self, key: Hashable, k: int, returned: _Returned) -> None:
        source, own, part = self._traffic.process_of[k], self._messages.position, self._part(k)
        found = {
            process: [self._placed.parts.added(part, self._state.upstream.pop(value, [])) for value in values]
            for process, values in returned.items()
            if source == own
        }

        def describe() -> list[Any]:
            return [
                [process, [None if each is None else layer_api.Description.from_tensor(each) for each in gradients]]
                for process, gradients in found.items()
            ]

        agreed = {
            process: [None if each is None else layer_api.Description.from_json(each) for each in described]
            for process, described in self._agreed(key, source, describe)
        }
        for process, values in sorted(returned.items()):
            present = [
                (value, takes, described)
                for (value, takes), described in zip(values.items(), agreed[process], strict=True)
                if described is not None
            ]
            if own in (source, process):
                sizes = self._sizes_of_gradients([(value, described) for value, _, described in present])
            if present and source == own:
                self._messages.send(part, process, [each for each in found[process] if each is not None], sizes)
            elif present and process == own:
                # The backward pass runs from the last stage to the first, so the last of these stages comes first.
                takers = [takes for _, takes, _ in present if takes is not None]
                first = max(takers, key=lambda takes: takes.stage, default=None)
                part, after = (
                    (part, ()) if first is None else (self._part(first.stage), self._dependencies_of_receive(first))
                )
                received = self._messages.receive(part, source, [each for *_, each in present], after, sizes)
                for (value, *_), gradient in zip(present, received, strict=True):
                    self._state.note(value, gradient)

    def _sizes_of_gradients(
        self, gradients: Sequence[tuple[Hashable, layer_api.Description]]
    ) -> dict[tuple[int, int], Any]:
        """Returns gradient sizes, derived from the activations' shapes, which both ends know."""
        found = {}
        for n, (key, described) in enumerate(gradients):
            unknown = [dim for dim, size in enumerate(described.shape) if size is None]
            if unknown:
                shape = ops.shape(self._state.value(key))
                found.update({(n, dim): shape[dim] for dim in unknown})
        return found

    # ---- penalties

    def penalties(self) -> None:
        """Sends the penalties of weights to the process that computes the loss, or receives them."""
        last, own = self._traffic.last, self._messages.position
        for source in sorted({*self._traffic.process_of} - {last}):
            found = {k: self._state.penalties.get(k, []) for k in self._stages_of(source)}
            agreed = self._messages.agreed(
                source,
                [[k, *layer_api.Description.from_tensor(each)] for k, values in found.items() for each in values],
            )
            self._penalties[source] = [
                ("penalty", k, sum(other == k for other, *_ in agreed[:index])) for index, (k, *_) in enumerate(agreed)
            ]
            if not agreed:
                continue
            if own == source:
                self._messages.send(
                    self._part(min(found)), last, [each for values in found.values() for each in values]
                )
            elif own == last:
                described = [layer_api.Description.from_json(each) for _, *each in agreed]
                received = self._messages.receive(self._part(len(self._stages) - 1), source, described)
                for (_, k, _), value in zip(self._penalties[source], received, strict=True):
                    self._state.penalties.setdefault(k, []).append(value)

    def gradients_of_penalties(self) -> None:
        """Sends the gradients of penalties back to the processes of the weights, or receives them."""
        returned: _Returned = {source: dict.fromkeys(keys) for source, keys in self._penalties.items() if keys}
        if returned:
            self._exchange_gradients("penalties", len(self._stages) - 1, returned)

    def _stages_of(self, process: int) -> list[int]:
        return [k for k, each in enumerate(self._traffic.process_of) if each == process]

    def _key(self, action: Action) -> Hashable:
        return action.stage, action.kind, self._alike[action.microbatch]

    def _agreed(self, key: Hashable, source: int, describe: Callable[[], Any]) -> Any:
        """Returns the value that process `source` broadcasts for a key; broadcasts once per key."""
        if key not in self._agreed_values:
            self._agreed_values[key] = self._messages.agreed(
                source, describe() if source == self._messages.position else None
            )
        return self._agreed_values[key]

    def _part(self, k: int) -> int:
        """Returns the part of a stage; if another process holds it, the first part of this process."""
        part = self._placed.devices[k]
        return self._placed.parts.owned[0] if part is None else part

    def _dependencies_of_receive(self, action: Action) -> Sequence[Any]:
        return self._dependencies.before_receive(self._placed.part(action.stage), action)


def _shapes(values: Mapping[int, Any]) -> list[Any]:
    return [None if value is None else tuple(value.shape) for value in values.values()]
