"""Calls of a pipeline's layers one by one, outside of its schedule, as a task does when it generates text.

The program calls the layers itself, in its own order and with arguments of its own, such as caches. Each call computes
on the device of its stage. If stages are in several processes, all of them run the program: the process of a stage
computes the call and sends the result to the processes that use it, by the model's graph; the others have zeros in its
place, which nothing that they compute depends on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.graph_nodes import Node
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.thread_state import ThreadState
from strategies import layer_api


@dataclass(frozen=True)
class _LayerCall:
    """A call of a layer in the model's graph.

    Attributes:
        stage: the stage that computes it.
        node: the call.
        takers: the processes, as positions along "pipe", that use the results and do not compute them.
    """

    stage: int
    node: Node
    takers: tuple[int, ...]


class StageCalls:
    """Places the calls of a pipeline's layers.

    Args:
        placed: the stages.
        thread: the state of the model in the current thread.
    """

    def __init__(self, placed: PlacedStages, thread: ThreadState) -> None:
        self._placed, self._thread = placed, thread

    @functools.cached_property
    def _calls(self) -> dict[int, tuple[Any, list[_LayerCall]]]:
        """The calls of each layer, by the layer's ``id``."""
        found: dict[int, tuple[Any, list[_LayerCall]]] = {}
        for stage in self._placed.stages:
            for node in stage.nodes:
                if isinstance(node.operation, keras.Layer):
                    call = _LayerCall(stage.index, node, self._takers(stage.index, node))
                    found.setdefault(id(node.operation), (node.operation, []))[1].append(call)
        return found

    def _takers(self, k: int, node: Node) -> tuple[int, ...]:
        """Returns the processes that use the results of a node: directly, or through operations that are no layers."""
        used = set(map(id, node.outputs))
        outputs = set(map(id, self._placed.outputs))
        found: set[int] = set()
        for stage in self._placed.stages:
            for other in stage.nodes:
                if not any(id(tensor) in used for tensor in other.input_tensors):
                    continue
                if isinstance(other.operation, keras.Layer):
                    found.add(self._placed.process_of[stage.index])
                else:
                    # All processes compute operations.
                    used.update(map(id, other.outputs))
        if used & outputs:
            found.update(self._placed.process_of)
        return tuple(sorted(found - {self._placed.process_of[k]}))

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Context manager: each call of a layer of a stage computes on the device of its stage.

        All processes that have stages enter it, and call the same layers in the same order.
        """
        if self._thread.places:
            yield
            return
        messages = layer_api.StageMessages(self._placed.parts) if self._placed.crosses else None
        with contextlib.ExitStack() as stack:
            for layer, calls in self._calls.values():
                for name in ("call", "quantized_call"):
                    stack.enter_context(_replaced(layer, name, functools.partial(self._call, messages, calls)))
            self._thread.places = True
            try:
                yield
            finally:
                self._thread.places = False

    def _call(
        self,
        messages: layer_api.StageMessages | None,
        calls: Sequence[_LayerCall],
        original: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not self._thread.places:
            return original(*args, **kwargs)
        self._thread.places = False
        try:
            call = self._chosen(calls, kwargs)
            if messages is None:
                with self._placed.parts.on(self._placed.part(call.stage)):
                    return original(*args, **kwargs)
            if self._placed.devices[call.stage] is not None:
                return self._computed(messages, call, functools.partial(original, *args, **kwargs))
            return self._received(messages, call, original, args, kwargs)
        finally:
            self._thread.places = True

    def _chosen(self, calls: Sequence[_LayerCall], kwargs: dict[str, Any]) -> _LayerCall:
        """Returns the call of the graph that has the same options, such as ``reverse=True`` of an embedding.

        Raises:
            ValueError: several stages, in several processes, have such a call.
        """
        own = _options(kwargs)
        alike = [call for call in calls if _options(call.node.kwargs).items() <= own.items()]
        # The call with the most options in common: a call without options is like all.
        most = max((len(_options(call.node.kwargs)) for call in alike), default=0)
        found = [call for call in alike if len(_options(call.node.kwargs)) == most] or list(calls)
        if len({self._placed.process_of[call.stage] for call in found}) > 1:
            raise ValueError(
                f"The layer {found[0].node.name!r} is called in stages of several processes, and outside of the "
                "schedule, as in generate(), it is unknown which of these calls is meant. Keep these stages in one "
                f"process. Received: stages {sorted({call.stage for call in found})}."
            )
        return found[0]

    def _computed(self, messages: layer_api.StageMessages, call: _LayerCall, compute: Callable[[], Any]) -> Any:
        part = self._placed.part(call.stage)
        with self._placed.parts.on(part):
            results = compute()
        sent = _as_in_graph(call.node, keras.tree.flatten(results))
        for process in call.takers:
            messages.send(part, process, sent)
        return results

    def _received(
        self,
        messages: layer_api.StageMessages,
        call: _LayerCall,
        original: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        specs = layer_api.shapes_of(lambda args, kwargs: original(*args, **kwargs), tuple(args), kwargs)
        part = self._placed.parts.owned[0]
        results = [_zeros(spec) for spec in keras.tree.flatten(specs)]
        if messages.position in call.takers:
            expected = _as_in_graph(call.node, results)
            described = [layer_api.Description.from_tensor(each) for each in expected]
            source = self._placed.process_of[call.stage]
            results[: len(expected)] = messages.receive(part, source, described)
        return keras.tree.pack_sequence_as(specs, results)


@contextlib.contextmanager
def _replaced(layer: Any, name: str, call: Callable[..., Any]) -> Iterator[None]:
    """Context manager: a method of one layer is ``call(original, ...)``. Only this layer is changed, not its class."""
    # Not by setattr, by which layers track what they hold.
    own = vars(layer)
    before = own.get(name)
    own[name] = functools.partial(call, getattr(layer, name))
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before


def _options(kwargs: Any) -> dict[str, Any]:
    """Returns the arguments that select what a layer computes, such as ``reverse=True``."""
    return {name: value for name, value in kwargs.items() if name != "training" and isinstance(value, (bool, str))}


def _as_in_graph(node: Node, results: Sequence[Any]) -> Sequence[Any]:
    """Returns the results of a call that the same call in the model's graph has; others, such as caches, follow them.

    Raises:
        ValueError: the first results are others than in the graph.
    """
    found = list(results)[: len(node.outputs)]
    if len(found) < len(node.outputs) or not all(map(_is_alike, found, node.outputs)):
        own, wanted = ([tuple(each.shape) for each in tensors] for tensors in (results, node.outputs))
        raise ValueError(
            f"The layer {node.name!r} returns other tensors here than in the model's graph, so that it is unknown "
            f"which of them another process needs. Keep the stages in one process. Received: shapes {own}, and "
            f"{wanted} in the graph."
        )
    return found


def _is_alike(one: Any, other: Any) -> bool:
    """Returns True if two tensors have the same dtype, number of dims, and last dim where it is known."""
    last = {*one.shape[-1:], *other.shape[-1:]} - {None}
    same_dtype = keras.backend.standardize_dtype(one.dtype) == keras.backend.standardize_dtype(other.dtype)
    return same_dtype and len(one.shape) == len(other.shape) and len(last) <= 1


def _zeros(spec: Any) -> Any:
    return ops.zeros(spec.shape, spec.dtype)
