"""A scan of the graphs of a step as they would be placed on GPUs, op by op.

It flattens the functions that a function calls, the branches of conditionals and the bodies of loops, and gives each op
the device that it would have if logical devices CPU:1, CPU:2 .. were GPU:0, GPU:1 .. (``tests/would_be_gpus.py``). Ops
without a device are on GPU:0, and ops with a resource are on its device. TensorFlow's placer and graph rewriting decide
more than that: the counts are of the graph as traced, with each edge counted once for each device that it leads to.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tests.gpu_kernels import kernel_of, on_host
from tests.gpu_order import (
    BRANCHES,
    CALLS,
    COLLECTIVES,
    HOST,
    LOOPS,
    control_outputs,
    disorders_in,
    functions_of,
    is_functional,
    would_be,
)


@dataclass(eq=False)
class Node:
    """An op of a step, once for each call of the function that contains it.

    Args:
        path: the names of the calls and of the op.
        type: type of the op.
        device: "GPU:1" or "host".
        op: None for a node that marks the beginning or the end of a call.
    """

    path: str
    type: str
    device: str
    op: Any = None

    def __str__(self) -> str:
        return f"{self.device} {self.type} {self.path}"


@dataclass
class Scan:
    """The ops of a graph, and the edges between devices.

    Attributes:
        nodes: all ops.
        control_edges: control edges from one device to another.
        copies: copies of tensors between the memories of two devices, or of a GPU and the host. An argument is in the
            memory where it is read first; reading it elsewhere is a copy.
        disorders: pairs of collectives of one device, neither of which waits for the other.
    """

    nodes: list[Node] = field(default_factory=list)
    control_edges: list[tuple[Node, Node]] = field(default_factory=list)
    copies: list[tuple[Node, Node]] = field(default_factory=list)
    disorders: list[str] = field(default_factory=list)

    def without_kernel(self) -> list[Node]:
        """Returns the ops on GPUs for which TensorFlow has no GPU kernel."""
        return [
            node
            for node in self.nodes
            if node.device != HOST
            and node.op is not None
            and node.type not in (*CALLS, *BRANCHES, *LOOPS, "Placeholder")
            and kernel_of(node.op) is None
        ]

    def refused(self) -> list[Node]:
        """Returns the collectives on GPUs whose dtype TensorFlow rejects at run time."""
        return [
            node
            for node in self.collectives()
            if node.op.get_attr("T") in (tf.bool, tf.bfloat16)
            or (node.type == "CollectiveReduceV2" and node.op.get_attr("T") == tf.int32)
        ]

    def collectives(self) -> list[Node]:
        """Returns the collectives on GPUs."""
        return [node for node in self.nodes if node.type in COLLECTIVES and node.device != HOST]

    def with_host(self) -> list[tuple[Node, Node]]:
        """Returns the control edges between a GPU and the host, one for each source and device."""
        return _once(edge for edge in self.control_edges if HOST in (edge[0].device, edge[1].device))

    def between_gpus(self) -> list[tuple[Node, Node]]:
        """Returns the control edges between GPUs; edges from one GPU to the same op count as one.

        TensorFlow merges these when it rewrites the graph. The scan does not rely on that between a GPU and the host.
        """
        between = _once(edge for edge in self.control_edges if HOST not in (edge[0].device, edge[1].device))
        return list({(source.device, id(target)): (source, target) for source, target in between}.values())

    def beside_collectives(self) -> list[tuple[Node, Node]]:
        """Returns the control edges between the host and a GPU's collectives, their inputs or results."""
        crossing = [edge for edge in self.control_edges if HOST in (edge[0].device, edge[1].device)]
        return _once(edge for edge in crossing if _feeds_collective(edge[1]) or _follows_collective(edge[0]))


def worst(edges: Iterable[tuple[Node, Node]], count: int = 12) -> str:
    """Returns the most frequent kinds of edges, with an example each."""
    kinds: dict[tuple[str, ...], list[tuple[Node, Node]]] = collections.defaultdict(list)
    for source, target in edges:
        kinds[source.type, source.device, target.type, target.device].append((source, target))
    ranked = sorted(kinds.values(), key=len, reverse=True)[:count]
    return "\n".join(f"{len(each)} x {each[0][0]} -> {each[0][1]}" for each in ranked)


def scan(function: Any) -> Scan:
    """Scans a concrete function."""
    return _Scanner().run(function.graph)


def _once(edges: Iterable[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    return list({(id(source), target.device): (source, target) for source, target in edges}.values())


def _feeds_collective(node: Node) -> bool:
    ops = [] if node.op is None else [node.op, *(user for output in node.op.outputs for user in output.consumers())]
    return any(op.type in COLLECTIVES for op in ops)


def _follows_collective(node: Node) -> bool:
    ops = [] if node.op is None else [node.op, *(tensor.op for tensor in node.op.inputs)]
    return any(op.type in COLLECTIVES for op in ops)


@dataclass(frozen=True)
class _Value:
    """A tensor: its op, the index of the output, and for a handle the device of its variable."""

    node: Node
    index: int
    home: str | None = None


class _Scanner:
    def __init__(self) -> None:
        self._scan = Scan()
        self._copied: set[tuple[int, int, str, bool]] = set()
        # The device on which each argument is read first.
        self._read: dict[int, str] = {}
        # Ops that TensorFlow folds into constants.
        self._folded: set[int] = set()

    def run(self, graph: Any) -> Scan:
        inside = {placeholder.name: external for external, placeholder in graph.captures}
        arguments = []
        for tensor in graph.inputs:
            external = inside.get(tensor.name)
            home = would_be(external.device) if external is not None and external.dtype == tf.resource else None
            arguments.append(_Value(self._add("argument", "Argument", HOST), 0, home))
        self._graph(graph, "", "GPU:0", arguments, None)
        return self._scan

    def _add(self, path: str, kind: str, device: str, op: Any = None) -> Node:
        node = Node(path, kind, device, op)
        self._scan.nodes.append(node)
        return node

    def _control(self, source: Node, target: Node) -> None:
        if source.device != target.device:
            self._scan.control_edges.append((source, target))

    def _graph(
        self, graph: Any, path: str, default: str, arguments: Sequence[_Value], entered: Node | None
    ) -> tuple[list[_Value], list[Node]]:
        """Adds a function's ops; returns its outputs, and the ops that must have run before it is done."""
        values = {tensor.name: value for tensor, value in zip(graph.inputs, arguments, strict=True)}
        done: dict[str, Node] = {}
        for op in graph.get_operations():
            if op.type == "Placeholder" and op.outputs[0].name in values:
                continue
            inputs = [values[tensor.name] for tensor in op.inputs]
            homes = {value.home for value in inputs if value.home is not None}
            device = would_be(op.device) or (homes.pop() if len(homes) == 1 and not is_functional(op) else default)
            before = [done[each.name] for each in op.control_inputs if each.name in done]
            if not op.inputs and not before and entered is not None:
                before = [entered]
            name = f"{path}{op.name}"
            made, end = (self._functional if is_functional(op) else self._plain)(
                op, name, device, inputs, before, graph
            )
            done[op.name] = end
            values |= {tensor.name: value for tensor, value in zip(op.outputs, made, strict=True)}
        self._scan.disorders += disorders_in(graph, path, default)
        return [values[tensor.name] for tensor in graph.outputs], [
            done[each.name] for each in control_outputs(graph) if each.name in done
        ]

    def _plain(
        self, op: Any, name: str, device: str, inputs: Sequence[_Value], before: Sequence[Node], _: Any
    ) -> tuple[list[_Value], Node]:
        node = self._add(name, op.type, device, op)
        constant = [value.node.type != "Argument" and self._memory(value) is None for value in inputs]
        if inputs and all(constant) and not op.op_def.is_stateful:
            self._folded.add(id(node))
        self._data(inputs, node)
        for each in before:
            self._control(each, node)
        home = device if op.type == "VarHandleOp" else inputs[0].home if op.type == "Identity" else None
        return [_Value(node, i, home) for i in range(len(op.outputs))], node

    def _functional(
        self, op: Any, name: str, device: str, inputs: Sequence[_Value], before: Sequence[Node], graph: Any
    ) -> tuple[list[_Value], Node]:
        entered = None
        if before or op.type in BRANCHES:
            entered = self._add(f"{name}/begin", "Begin", device)
            for each in before:
                self._control(each, entered)
        end = self._add(f"{name}/end", "End", device)
        outputs: list[_Value] = []
        for attribute, inner in functions_of(op, graph):
            arguments = inputs[1:] if op.type in BRANCHES else list(inputs)
            made, must_run = self._graph(inner, f"{name}/", device, arguments, entered)
            for node in must_run:
                self._control(node, end)
            if op.type in CALLS:
                outputs = made
            elif op.type in BRANCHES:
                # A branch returns its results on the conditional's device; its inputs stay where they are.
                merged = self._add(name, op.type, device, op)
                for value in made:
                    self._data([value], merged, is_gate=True)
                outputs = [v if v.home is not None else _Value(merged, i) for i, v in enumerate(made)]
            elif attribute == "body":
                # The next iteration expects its values on the devices of the first one's values.
                for value, first in zip(made, inputs, strict=True):
                    self._data([value], first.node if first.node.op is not None else end, is_gate=True)
                outputs = [new if old.node.op is None else old for new, old in zip(made, inputs, strict=True)]
        return outputs, end

    def _data(self, inputs: Sequence[_Value], node: Node, *, is_gate: bool = False) -> None:
        kernel = None if node.op is None or node.device == HOST or is_gate else kernel_of(node.op)
        hosted = [] if is_gate else on_host(node.op, kernel, inputs=True)
        for i, value in enumerate(inputs):
            there = self._memory(value)
            if is_gate:
                here = HOST if there == HOST else node.device
            else:
                here = HOST if node.device == HOST or hosted[i] else node.device
            if value.node.type == "Argument" and value.home is None and not is_gate and _is_large(node.op, i):
                there = self._read.setdefault(id(value.node), here)
            if there in (here, None):
                continue
            key = (id(value.node), value.index, node.device, here == HOST)
            if key not in self._copied:
                self._copied.add(key)
                self._scan.copies.append((value.node, node))

    def _memory(self, value: _Value) -> str | None:
        """Returns the memory of a tensor; None for arguments and constants, which are wherever they are needed."""
        node = value.node
        if node.type in ("Argument", "Const", "Placeholder") or id(node) in self._folded:
            return None
        if node.device == HOST or node.op is None:
            return node.device
        if is_functional(node.op):
            return HOST if node.op.outputs[0:] and _on_host_by_dtype(node.op, value.index) else node.device
        return HOST if on_host(node.op, kernel_of(node.op), inputs=False)[value.index] else node.device


def _is_large(op: Any, index: int) -> bool:
    """Returns True if an input of an op may be large: no scalar, and no int32, which is used for shapes."""
    tensor = None if op is None else op.inputs[index]
    return tensor is not None and tensor.shape.rank != 0 and not _is_hosted(tensor.dtype)


def _on_host_by_dtype(op: Any, index: int) -> bool:
    return index < len(op.outputs) and _is_hosted(op.outputs[index].dtype)


def _is_hosted(dtype: tf.DType) -> bool:
    return dtype in (tf.int32, tf.resource, tf.variant, tf.string)
