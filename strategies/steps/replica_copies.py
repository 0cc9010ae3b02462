"""Copies the ops of the first local replica for the other replicas of this process.

All local replicas run the same ops, each with its own rows, on its own device, with its own components of the
variables. One of them is traced, by Python; the ops of the others are copies of the traced ones in the same graph:

```
    replica 0, traced               replica 1, copied

    rows of 0     weight on 0       rows of 1     weight on 1
         └───┐   ┌───┘                  └───┐   ┌───┘            inputs: exchanged (`pairs`, captured variables)
            MatMul                         MatMul                ops: copied, with the devices of replica 1
              │                              │
              └────────── all-reduce ────────┘                   merge calls: run once, for all replicas
              │                              │
            Assign                         Assign                ops after the merge call: copied, too
```

So tracing takes the time of one replica, and the graph computes what tracing each replica would give. What the first
replica computes more than once is copied once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import handle_data_util, regroup, select_replica
from strategies.batches.shares import NotAlikeError
from strategies.steps.common_ops import merge_common, versions_read
from strategies.steps.copied_marks import are_marked_alike, copy_marks, has_marks
from strategies.steps.copied_nodes import NodesToCopy, nodes_to_copy
from strategies.steps.copy_obstacles import Obstacles
from strategies.steps.function_copies import FunctionCopies
from strategies.steps.graph_import import import_nodes
from strategies.steps.replica_pairs import Pairs

#: The ends of the types of ops that their gradient changes.
_BRANCHING = ("If", "Case", "While")


class ReplicaCopies:
    """The ops of the other local replicas in the graph of one step.

    Args:
        graph: the graph of the step.
        devices: for each group of devices that hold one part of all local replicas, its devices in the order of the
            replicas.
        components: by the id of a resource that belongs to replica 0, the resources of all local replicas.
    """

    def __init__(
        self, graph: Any, devices: Sequence[Sequence[str]], components: Callable[[], Mapping[int, Sequence[Any]]]
    ) -> None:
        self.graph = graph
        self.num_replicas = len(devices[0])
        self._devices = devices
        self._components = components
        #: Values that are exchanged for those of each replica.
        self.pairs = Pairs()
        # By the name of a copied op: the prefixes of the copies' names, by replica.
        self._prefixes: dict[str, Sequence[str]] = {}
        # By the name of an op without copies: the name of the op whose copies compute the same.
        self._same: dict[str, str] = {}
        # Ops that belong to all replicas, although they are made while replica 0 is traced.
        self._common: set[str] = set()
        # By the name of a captured placeholder: the resources of all replicas; None if it is the same for all.
        self._resources: dict[str, Sequence[Any] | None] = {}
        # (op that is not copied, the ops of replica 0 whose copies it is to wait for, their replica).
        self._waiting: list[tuple[Any, Sequence[Any], int]] = []
        # Copied conditionals and loops.
        self._branching: list[Any] = []
        self._obstacles = Obstacles()
        self._functions = FunctionCopies(graph, self._device)
        self._begin = 0
        self.begin()

    def begin(self) -> None:
        """Starts a segment: ops made from now on belong to replica 0."""
        self._begin = len(self.graph.get_operations())

    def constant(self, value: Callable[[int], Any]) -> tf.Tensor:
        """Returns a constant that each replica has for itself.

        Args:
            value: returns a local replica's number or array.
        """

        def make(replica: int) -> tf.Tensor:
            with tf.device(self._devices[0][replica]):
                return tf.constant(value(replica))

        with self.graph.as_default(), tf.control_dependencies(None):
            constant: tf.Tensor = self.make_each(make)
        return constant

    @contextlib.contextmanager
    def made_for_all(self) -> Iterator[None]:
        """Context manager: ops are made once for all replicas. They wait for the same ops of every replica."""
        begin = len(self.graph.get_operations())
        yield
        for op in self.graph.get_operations()[begin:]:
            self._common.add(op.name)
            before = [each for each in op.control_inputs if each.name not in self._common]
            if before:
                self._waiting += [(op, before, r) for r in range(1, self.num_replicas)]

    def make_each(self, make: Callable[[int], Any]) -> Any:
        """Makes values for all replicas in place of copying their ops, and returns those of replica 0.

        Args:
            make: returns a nest of tensors for a local replica, by the same ops for each. They wait for the same ops as
                those of replica 0, each for those of its own replica.
        """
        values, made = [], []
        for r in range(self.num_replicas):
            begin = len(self.graph.get_operations())
            with tf.control_dependencies(None) if r else contextlib.nullcontext():
                values.append(make(r))
            made.append([op for op in self.graph.get_operations()[begin:] if op.type != "Placeholder"])
        for r, own in enumerate(made):
            self._common.update(op.name for op in own)
            for first, op in zip(made[0], own, strict=True):
                if r > 0 and first.control_inputs:
                    self._waiting.append((op, first.control_inputs, r))
        self.pairs.add(values)
        return values[0]

    # ---- copies

    def has_copies_of(self, op: Any) -> bool:
        """Returns True if an op of replica 0 has been copied: changes of its inputs come too late."""
        return op.name in self._prefixes

    def copy(self) -> None:
        """Ends a segment: copies the ops made since :meth:`begin` for each other replica."""
        made = self.graph.get_operations()[self._begin :]
        captured = {inner.op.name for _, inner in self.graph.captures}
        ops = [op for op in made if op.name not in self._common and op.name not in captured]
        if ops:
            self._copy(ops, versions_read(made))
        for op, before, r in self._waiting:
            op._add_control_inputs([self._operation(each.name, r) for each in before])
        self._waiting.clear()
        self.begin()

    def _copy(self, ops: Sequence[Any], versions: Mapping[str, tuple[int, int]]) -> None:
        nodes = {op.name: op.node_def for op in ops}
        if (reason := self._obstacles.reason(nodes.values())) is not None:
            raise NotAlikeError(reason)
        names = list(nodes)
        # Copies of the first op that computes something replace those of others.
        self._same |= merge_common(nodes, self._are_marked_alike, versions)
        segment = nodes_to_copy(nodes, self.graph.graph_def_versions)
        with self.graph.as_default(), tf.control_dependencies(None), tf.device(None):
            changed = [self._change(op, r) for op in self._branching for r in range(1, self.num_replicas)]
            prefixes = ["", *(self._import(segment, r) for r in range(1, self.num_replicas))]
        self._prefixes |= dict.fromkeys(names, prefixes)
        for finish in changed:
            finish()
        self._branching += [op for op in ops if op.type.endswith(_BRANCHING)]
        for op in ops:
            for output in op.outputs:
                if has_marks(output):
                    for r in range(1, self.num_replicas):
                        copy_marks(output, self._tensor(output.name, r))
        for first, *others in self.pairs:
            for other in others:
                copy_marks(first, other)

    def _change(self, op: Any, replica: int) -> Callable[[], None]:
        """Changes the copy of a conditional or a loop as the gradient has changed the op: it returns more values.

        Returns:
            A function that adds the inputs that the op has got, once those of this segment have been copied.
        """
        copy = self._operation(op.name, replica)
        added = op.outputs[len(copy.outputs) :]
        if not added:
            return lambda: None
        # TensorFlow reads as many inputs as the attributes say: these are read before the attributes change.
        inputs = op.inputs[len(copy.inputs) :]
        node, before = op.node_def, copy.node_def
        self._functions.let_call(node, replica)
        for name, value in node.attr.items():
            if name not in before.attr or before.attr[name] != value:
                copy._set_attr(name, value)
        copy._add_outputs([each.dtype for each in added], [each.shape for each in added])
        for each, copied in zip(added, copy.outputs[-len(added) :], strict=True):
            handle_data_util.copy_handle_data(each, copied)
        return lambda: copy._add_while_inputs([self._exchanged(each, replica) for each in inputs]) if inputs else None

    def _import(self, segment: NodesToCopy, replica: int) -> str:
        """Imports nodes for a replica, and returns the prefix of the imported ops' names."""
        part = tf.compat.v1.GraphDef()
        part.CopyFrom(segment.graph_def)
        for node in part.node:
            node.device = self._device(node.device, replica)
        for index in segment.calling:
            self._functions.let_call(part.node[index], replica)
        inputs = {
            name: self._exchanged(self.graph.get_tensor_by_name(name), replica) for name in segment.outside_tensors
        }
        prefix = import_nodes(self.graph, part, inputs, f"replica_{replica}")
        for name, before in segment.outside_ops.items():
            op = self.graph.get_operation_by_name(f"{prefix}{name}")
            op._add_control_inputs([self._operation(each, replica) for each in before])
        return prefix

    def _are_marked_alike(self, name: str, other: str) -> bool:
        return are_marked_alike(*map(self.graph.get_operation_by_name, (name, other)))

    # ---- values

    def for_replica(self, value: Any, replica: int) -> Any:
        """Returns the value of a replica, for a nest of values of replica 0."""
        if replica == 0:
            return value
        return tf.nest.map_structure(functools.partial(self._of_leaf, replica=replica), value)

    def for_all_replicas(self, value: Any) -> Any:
        """Returns the values of all replicas as TensorFlow groups them, for a nest of values of replica 0."""
        return regroup(tuple(self.for_replica(value, r) for r in range(self.num_replicas)))

    def take(self, result: Any) -> Any:
        """Returns replica 0's part of a nest of per-replica values, and registers those of the others."""
        parts = [select_replica(r, result) for r in range(self.num_replicas)]
        self.pairs.add(parts)
        return parts[0]

    def _of_leaf(self, leaf: Any, replica: int) -> Any:
        if isinstance(leaf, tf.Variable):
            # Of the components of a variable, each replica has its own. TensorFlow groups these again.
            container = getattr(leaf, "_distributed_container", lambda: None)()
            return leaf if container is None else container.values[replica]
        if isinstance(leaf, tf.Tensor):
            return copy_marks(leaf, self._exchanged(leaf, replica))
        if tf.is_tensor(leaf) and not isinstance(leaf, tf.distribute.DistributedValues):
            exchange = functools.partial(self._of_leaf, replica=replica)
            return tf.nest.map_structure(exchange, leaf, expand_composites=True)
        return leaf

    def _exchanged(self, tensor: Any, replica: int) -> Any:
        """Returns a replica's tensor in place of one of replica 0; a tensor that all have in common is itself."""
        is_eager = hasattr(tensor, "numpy")
        if not is_eager and tensor.graph is not self.graph:
            return tensor
        pair = self.pairs.get(tensor)
        if pair is not None:
            return pair[replica]
        if is_eager:
            return tensor
        if tensor.op.name in self._prefixes:
            return self._tensor(tensor.name, replica)
        outer = self._captured(tensor.name) if tensor.op.type == "Placeholder" else None
        return tensor if outer is None else self.graph.capture(outer[replica])

    def _captured(self, name: str) -> Sequence[Any] | None:
        """Returns all components' resources for the placeholder of a variable's component on replica 0, else None."""
        if name not in self._resources:
            components = self._components()
            for outer, inner in self.graph.captures:
                self._resources.setdefault(inner.name, components.get(id(outer)))
        return self._resources.get(name)

    def _tensor(self, name: str, replica: int) -> Any:
        op, _, index = name.partition(":")
        return self._operation(op, replica).outputs[int(index)]

    def _operation(self, name: str, replica: int) -> Any:
        prefixes = self._prefixes.get(name)
        if prefixes is None:
            return self.graph.get_operation_by_name(name)
        return self.graph.get_operation_by_name(f"{prefixes[replica]}{self._same.get(name, name)}")

    def _device(self, name: str, replica: int) -> str:
        for group in self._devices:
            if name == group[0]:
                return group[replica]
        return name
