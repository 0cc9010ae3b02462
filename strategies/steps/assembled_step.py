"""Adds a step to the graph of its caller, with the ops of the first local replica once for each local replica.

The step has been traced in a graph of its own, see `replica_copies`. Its ops are imported in the order in which they
were made, by which ``tf.function`` orders reads and writes of a variable: each op of the first replica is followed by
its copies. An op that was given an input later, such as a loop by its gradient, comes after that input.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica, func_graph
from strategies.batches.shares import NotAlikeError
from strategies.collectives.traced_ops import ORDER, IndependentOps
from strategies.steps.common_ops import merge_common, versions_read
from strategies.steps.context import trainer_call
from strategies.steps.copied_marks import copy_marks
from strategies.steps.copy_obstacles import Obstacles
from strategies.steps.function_copies import FunctionCopies, functions_of
from strategies.steps.graph_import import capture_resources, import_nodes
from strategies.steps.op_places import note_places
from strategies.steps.optimized_replica import optimize
from strategies.steps.replica_copies import ReplicaCopies
from strategies.topology.devices import is_gpu


def new_graph(caller: Any) -> Any:
    """Returns a graph in which a step can be traced that :func:`assemble` adds to the graph of its caller."""
    graph = func_graph.FuncGraph("step")
    # Names stay as they are when ops are added to the caller's graph.
    graph._names_in_use.update(caller._names_in_use)
    # Branches and loops order their own ops only if the graph around them says so.
    graph._add_control_dependencies = True
    graph.experimental_acd_manager = IndependentOps()
    return graph


def captured(graph: Any, value: Any) -> Any:
    """Returns a nest of a caller's values, with its tensors captured by the graph of a step, with their marks."""

    def of_tensor(tensor: Any) -> Any:
        is_symbolic = isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy")
        return copy_marks(tensor, graph.capture(tensor)) if is_symbolic else tensor

    return _mapped(of_tensor, value)


def assemble(copies: ReplicaCopies, caller: Any, outputs: Any) -> Any:
    """Adds a traced step to the graph of its caller, and returns the step's outputs there.

    Args:
        copies: the values of other replicas that the traced graph takes.
        caller: the graph of the caller.
        outputs: a nest of values, with tensors of the traced graph.

    Raises:
        NotAlikeError: an op of the first replica cannot be copied.
    """
    flat = [each for leaf in tf.nest.flatten(outputs) for each in _components(leaf)]
    assembly = _Assembly(copies, [each for each in flat if _is_of(copies.graph, each)])
    imported = assembly.import_into(caller)
    manager = getattr(caller, "experimental_acd_manager", None)
    if manager is not None:
        for name in copies.graph.experimental_acd_manager.names:
            manager.run_independently(caller.get_operation_by_name(name))
    ORDER.continue_in(copies.graph, caller)

    def of_tensor(tensor: Any) -> Any:
        if not _is_of(copies.graph, tensor):
            return tensor
        name = assembly.name(tensor.name, 0)
        final = imported[name] if name in imported else caller.get_tensor_by_name(name)
        final.set_shape(tensor.shape)
        return copy_marks(tensor, final)

    return _mapped(of_tensor, outputs)


class _Assembly:
    """The nodes of a traced step, with those of the first local replica once for each local replica.

    Args:
        copies: the values of other replicas that the traced graph takes.
        outputs: the tensors of the traced graph that the caller takes.
    """

    def __init__(self, copies: ReplicaCopies, outputs: Sequence[Any]) -> None:
        self._copies = copies
        self._traced = copies.graph
        ops = self._traced.get_operations()
        left_out = {inner.op.name for _, inner in self._traced.captures} | copies.awaited.keys()
        # The nodes of ops that are no replica's, and those of the first replica.
        self._common = {op.name: op.node_def for op in ops if op.name not in copies.own and op.name not in left_out}
        self._own = {op.name: op.node_def for op in ops if op.name in copies.own}
        if (reason := Obstacles().reason(self._own.values())) is not None:
            raise NotAlikeError(reason)
        # By the name of an op of the first replica that is left out: the op that computes the same.
        self._same = merge_common(self._own, versions_read(ops))
        self._optimize(outputs)
        self._prefixes = ["", *_prefixes(self._traced, copies.num_replicas - 1)]
        # The other replicas' components of variables, by the names that stand for them among the inputs of nodes.
        self._components: dict[str, Any] = {}
        self._resolved = functools.cache(self._resolve)

    def import_into(self, caller: Any) -> Mapping[str, Any]:
        """Adds all nodes to a graph, and returns the tensors of this graph that the step takes, by their names."""
        for function in self._traced._functions.values():
            caller._add_function_recursive(function)
        functions = FunctionCopies(caller, self._copies.device)
        nodes = tf.compat.v1.GraphDef(versions=self._traced.graph_def_versions)
        # The names of the traced ops, by the names of their nodes.
        made_as: dict[str, str] = {}
        for name in self._ordered():
            made = self._copies_of(name, functions) if name in self._own else [self._node_of(name)]
            nodes.node.extend(made)
            made_as |= {node.name: name for node in made}
        with caller.as_default(), tf.control_dependencies(None), tf.device(None):
            taken = {inner.name: caller.capture(outer) for outer, inner in self._traced.captures}
            taken |= zip(self._components, capture_resources(caller, list(self._components.values())), strict=True)
            import_nodes(caller, nodes, taken)
        # Also those of ops that have been merged: they may be parts of names.
        caller._names_in_use.update(self._traced._names_in_use)
        own = [name.lower() for name in self._copies.own]
        caller._names_in_use.update((f"{prefix}{name}", 1) for prefix in self._prefixes[1:] for name in own)
        note_places(caller, (op for op in self._traced.get_operations() if self._is_added(op.name)), made_as)
        return taken

    def name(self, tensor: str, replica: int) -> str:
        """Returns the name of a replica's tensor in the caller's graph, for a tensor of the traced graph."""
        found, replica = self._resolved(tensor, replica)
        return f"{self._prefixes[replica]}{found}"

    def _resolve(self, tensor: str, replica: int) -> tuple[str, int]:
        """Returns the traced tensor that a replica takes, and the replica that has it; 0 if it belongs to all."""
        op, _, index = tensor.partition(":")
        tensor = f"{op}:{index or 0}"
        if op in self._copies.awaited:
            awaited, replica = self._copies.awaited[op]
            op, _, index = awaited.name.partition(":")
        elif replica > 0 and (pair := self._copies.pairs.named(tensor)) is not None:
            return self._resolve(pair[replica].name, 0)
        if self._is_own(op):
            return f"{self._same.get(op, op)}:{index or 0}", replica
        resource = self._copies.resource(tensor, replica) if replica > 0 else None
        if resource is not None:
            tensor = f"component_{id(resource)}:0"
            self._components[tensor] = resource
        return tensor, 0

    def _resolved_op(self, op: str, replica: int) -> tuple[str, int]:
        """Returns the traced op for which a replica waits, and the replica that has it; 0 if it belongs to all."""
        if op in self._copies.awaited:
            awaited, replica = self._copies.awaited[op]
            op = awaited.op.name
        return self._same.get(op, op), replica if self._is_own(op) else 0

    def _is_own(self, op: str) -> bool:
        return op in self._copies.own or op in self._own

    def _input(self, each: str, replica: int) -> str:
        """Returns the input of a replica's node, for one of a traced node."""
        if not each.startswith("^"):
            return self.name(each, replica)
        name, replica = self._resolved_op(each[1:], replica)
        return f"^{self._prefixes[replica]}{name}"

    def _node_of(self, name: str) -> Any:
        """Returns the node of an op that is no replica's."""
        node = self._common[name]
        node.input[:] = [self._input(each, 0) for each in node.input]
        waits = (self._input(f"^{each}", r) for before, r in self._copies.waiting.get(name, ()) for each in before)
        node.input.extend(each for each in dict.fromkeys(waits) if each not in node.input)
        if "_class" in node.attr:
            # Not with arguments of the function, nor with ops that have been merged.
            beside = node.attr["_class"].list.s
            kept = [each for each in beside if self._is_added(each.decode().removeprefix("loc:@"))]
            beside[:] = kept
            if not kept:
                del node.attr["_class"]
        return node

    def _copies_of(self, name: str, functions: FunctionCopies) -> list[Any]:
        """Returns the nodes of all replicas for one of the first replica."""
        original = self._own[name]
        # All ops of a replica have devices.
        original.attr.pop("_class", None)
        made = []
        for replica, prefix in enumerate(self._prefixes):
            node = type(original)()
            node.CopyFrom(original)
            node.name = f"{prefix}{name}"
            node.device = self._copies.device(original.device, replica)
            node.input[:] = [self._input(each, replica) for each in original.input]
            functions.let_call(node, replica)
            made.append(node)
        return made

    def _optimize(self, outputs: Sequence[Any]) -> None:
        """Optimizes the ops of the first replica, for all replicas, and those that are no replica's."""
        optimization = trainer_call().optimization
        config = None if optimization is None else optimization.for_replica()
        nodes = [*self._own.values(), *self._common.values()]
        if optimization is None or config is None or any(is_gpu(device) for device in {node.device for node in nodes}):
            return
        # TensorFlow optimizes branches and loops together with what is around them.
        can_optimize = not any(functions_of(node) for node in nodes)
        optimization.note_replicas(are_optimized=can_optimize)
        if can_optimize:
            kept = self._kept(outputs)
            self._own, self._common = (optimize(each, self._traced, kept, config) for each in (self._own, self._common))

    def _kept(self, outputs: Sequence[Any]) -> set[str]:
        """Returns the names of ops of the first replica that others take, and of other ops that replicas take."""
        copies = self._copies
        tensors = [*outputs, *(tensor for tensor, _ in copies.awaited.values())]
        tensors += [tensor for pair in copies.pairs for tensor in pair if _is_of(self._traced, tensor)]
        kept = {tensor.op.name for tensor in tensors}
        for some, others in ((self._own, self._common), (self._common, self._own)):
            inputs = {each.removeprefix("^").partition(":")[0] for node in some.values() for each in node.input}
            kept |= {name for name in inputs if name in others or name in self._same}
        kept.update(copies.waiting)
        kept.update(name for waits in copies.waiting.values() for before, _ in waits for name in before)
        kept.update(self._traced.experimental_acd_manager.names)
        kept.update(ORDER.names(self._traced))
        return {self._same.get(name, name) for name in kept}

    @functools.cached_property
    def _names(self) -> dict[str, None]:
        """The names of all traced ops, in the order in which they were made."""
        return dict.fromkeys(op.name for op in self._traced.get_operations())

    def _is_added(self, name: str) -> bool:
        return name in self._own or name in self._common

    def _ordered(self) -> Iterator[str]:
        """Iterates over the names of nodes: in the order in which their ops were made, each after what it needs."""
        done: set[str] = set()
        seen: set[str] = set()
        for first in self._names:
            waiting = [first] if self._is_added(first) else []
            while waiting:
                name = waiting[-1]
                needed = () if name in seen else self._needed(name)
                seen.add(name)
                missing = [each for each in needed if self._is_added(each) and each not in seen]
                if missing:
                    waiting += reversed(missing)
                    continue
                waiting.pop()
                if name not in done:
                    done.add(name)
                    yield name

    def _needed(self, name: str) -> Iterator[str]:
        """Iterates over the names of the nodes that come before those of an op."""
        is_own = name in self._own
        for each in (self._own[name] if is_own else self._common[name]).input:
            if each.startswith("^"):
                yield self._resolved_op(each[1:], 0)[0]
            else:
                for replica in range(self._copies.num_replicas if is_own else 1):
                    yield self._resolved(each, replica)[0].partition(":")[0]
        for before, _ in self._copies.waiting.get(name, ()):
            yield from (self._resolved_op(each, 0)[0] for each in before)


def _prefixes(graph: Any, n: int) -> list[str]:
    """Returns prefixes that no op of a graph has."""
    # TensorFlow gives the replicas that it traces such prefixes without reserving them.
    taken = {name.partition("/")[0] for name in graph._names_in_use}
    prefixes = []
    for replica in range(1, n + 1):
        while (prefix := graph.unique_name(f"replica_{replica}")) in taken:
            pass
        prefixes.append(f"{prefix}/")
    return prefixes


def _is_of(graph: Any, value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not hasattr(value, "numpy") and value.graph is graph


def _components(leaf: Any) -> list[Any]:
    """Returns the tensors that a value consists of; variables stay as they are."""
    if isinstance(leaf, tf.Variable) or not (tf.is_tensor(leaf) or isinstance(leaf, PerReplica)):
        return [leaf]
    return list(tf.nest.flatten(leaf, expand_composites=True))


def _mapped(of_tensor: Any, value: Any) -> Any:
    """Returns a nest with a function applied to each tensor in it."""

    def of_leaf(leaf: Any) -> Any:
        components = _components(leaf)
        if len(components) == 1 and components[0] is leaf:
            return of_tensor(leaf)
        return tf.nest.pack_sequence_as(leaf, [of_tensor(each) for each in components], expand_composites=True)

    return tf.nest.map_structure(of_leaf, value)
