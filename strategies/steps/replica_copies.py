"""The values of all local replicas, for a step in which only the first replica is traced.

All local replicas run the same ops, each with its own rows, on its own device, with its own components of the
variables. One of them is traced, by Python, in a graph of its own, together with what the replicas do at once, such as
sums of gradients. Where that asks for a value of another replica, it gets a placeholder. When the step has been traced,
`assembled_step` adds it to the graph of the caller, with the ops of the first replica once for each replica:

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

So tracing takes the time of one replica, and the graph computes what tracing each replica would give.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import handle_data_util, regroup, select_replica
from strategies.batches.graph_nodes import note_traced
from strategies.steps.copied_marks import copy_marks
from strategies.steps.graph_import import import_nodes
from strategies.steps.replica_pairs import Pairs


class ReplicaCopies:
    """The values of the other local replicas, for the trace of one.

    Args:
        graph: the graph in which the step is traced, and nothing else.
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
        #: The names of the ops of replica 0, in their order.
        self.own: dict[str, None] = {}
        #: By the name of a placeholder: the tensor of replica 0 for which it stands, and the replica.
        self.awaited: dict[str, tuple[Any, int]] = {}
        #: By the name of an op of no replica: (ops of replica 0 whose copies it waits for, the replica).
        self.waiting: dict[str, list[tuple[Sequence[str], int]]] = {}
        self._placeholders: dict[tuple[str, int], Any] = {}
        # Ops that belong to all replicas, although they are made while replica 0 is traced.
        self._common: set[str] = set()
        # By the name of a captured placeholder: the resources of all replicas; None if it is the same for all.
        self._resources: dict[str, Sequence[Any] | None] = {}
        self._begin = 0
        self.begin()

    def begin(self) -> None:
        """Starts a segment: ops made from now on belong to replica 0."""
        self._begin = len(self.graph.get_operations())

    def end(self) -> None:
        """Ends a segment: ops made from now on belong to all replicas."""
        captured = {inner.op.name for _, inner in self.graph.captures}
        for op in self.graph.get_operations()[self._begin :]:
            if op.name not in self._common and op.name not in captured:
                self.own[op.name] = None
        for first, *others in self.pairs:
            for other in others:
                copy_marks(first, other)
        self.begin()

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
            before = [each.name for each in op.control_inputs if each.name not in self._common]
            if before:
                self.waiting.setdefault(op.name, []).extend((before, r) for r in range(1, self.num_replicas))

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
                    self.waiting.setdefault(op.name, []).append(([each.name for each in first.control_inputs], r))
        self.pairs.add(values)
        return values[0]

    # ---- values

    def for_replica(self, value: Any, replica: int) -> Any:
        """Returns the value of a replica, for a nest of values of replica 0."""
        if replica == 0:
            return value
        return tf.nest.map_structure(functools.partial(self._of_leaf, replica=replica), value)

    def for_all_replicas(self, value: Any) -> Any:
        """Returns the values of all replicas as TensorFlow groups them, for a nest of values of replica 0."""
        tensors = {each.name: each for each in tf.nest.flatten(value, expand_composites=True) if self._is_own(each)}
        # Made at once, in a fraction of the time.
        self._add_placeholders([each for name, each in tensors.items() if (name, 1) not in self._placeholders])
        return regroup(tuple(self.for_replica(value, r) for r in range(self.num_replicas)))

    def take(self, result: Any) -> Any:
        """Returns replica 0's part of a nest of per-replica values, and registers those of the others."""
        parts = [select_replica(r, result) for r in range(self.num_replicas)]
        self.pairs.add(parts)
        return parts[0]

    def resource(self, name: str, replica: int) -> Any:
        """Returns a replica's resource, outside of the graph, for a placeholder of replica 0's.

        Args:
            name: the name of the placeholder, a tensor.
            replica: the replica.

        Returns:
            None if the placeholder is the same for all replicas.
        """
        if name not in self._resources:
            components = self._components()
            for outer, inner in self.graph.captures:
                self._resources.setdefault(inner.name, components.get(id(outer)))
        resources = self._resources.get(name)
        return None if resources is None else resources[replica]

    def device(self, name: str, replica: int) -> str:
        """Returns the device of a replica, for one of replica 0."""
        for group in self._devices:
            if name == group[0]:
                return group[replica]
        return name

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
        if self._is_own(tensor):
            return self._placeholder(tensor, replica)
        resource = self.resource(tensor.name, replica) if tensor.op.type == "Placeholder" else None
        return tensor if resource is None else self.graph.capture(resource)

    def _is_own(self, value: Any) -> bool:
        """Returns True if each replica computes a value for itself."""
        is_symbolic = isinstance(value, tf.Tensor) and not hasattr(value, "numpy")
        return is_symbolic and value.graph is self.graph and value.op.name in self.own and self.pairs.get(value) is None

    def _placeholder(self, tensor: Any, replica: int) -> Any:
        """Returns the placeholder of what a replica computes where replica 0 computes a tensor."""
        if (tensor.name, replica) not in self._placeholders:
            self._add_placeholders([tensor])
        return self._placeholders[tensor.name, replica]

    def _add_placeholders(self, tensors: Sequence[Any]) -> None:
        """Adds the placeholders of tensors of replica 0, for all other replicas."""
        if not tensors:
            return
        nodes = tf.compat.v1.GraphDef(versions=self.graph.graph_def_versions)
        prefix = self.graph.unique_name("of_replica")
        made = [(tensor, replica) for tensor in tensors for replica in range(1, self.num_replicas)]
        for i, (tensor, replica) in enumerate(made):
            # Merge calls look at the devices of the values.
            device = self.device(tensor.device, replica)
            node = nodes.node.add(name=f"{prefix}/{replica}_{i}", op="Placeholder", device=device)
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        import_nodes(self.graph, nodes, {})
        for node, (tensor, replica) in zip(nodes.node, made, strict=True):
            placeholder = self.graph.get_tensor_by_name(f"{node.name}:0")
            handle_data_util.copy_handle_data(tensor, placeholder)
            note_traced(placeholder, tensor, functools.partial(self._exchanged, replica=replica))
            self._common.add(node.name)
            self.awaited[node.name] = tensor, replica
            self._placeholders[tensor.name, replica] = placeholder
