"""A traced backward pass in two functions: one computes the gradients of inputs, the other those of variables.

A stage of a pipeline waits for the gradients of the next stage's inputs only, so those of variables may come later.
Both are the ops of one backward pass, which is traced as a whole and then cut: the first function gets the ops on which
the gradients of inputs depend, and returns what the others need from them; the second one gets the others.

```
    upstream ──► dx of layer 3 ──► dx of layer 2 ──► dx of layer 1 ──► gradients of inputs      first function
                     │ needed          │ needed          │ needed
    totals ─────►  + dW of 3         + dW of 2         + dW of 1   ──► totals                   second function
```

No op is computed twice, and none is another than in the whole pass. A second gradient of the tape would compute all
``dx`` again, as TensorFlow does not share ops between functions.

Source: Qi et al., arXiv:2401.10241, section 2 (the passes B and W).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf


class BackwardHalves:
    """The two functions of a backward pass. Create it in the graph in which the whole pass was traced.

    Args:
        whole: the concrete function of the whole pass. Its arguments are the gradients of outputs, then totals.
        num_upstream: the number of gradients of outputs among its arguments.
        num_gradients: the number of gradients of inputs among its outputs; the others are totals.
        make: makes a ``tf.function`` of a Python function.
    """

    def __init__(
        self, whole: Any, num_upstream: int, num_gradients: int, make: Callable[[Callable[..., Any]], Any]
    ) -> None:
        graph = whole.graph
        self._structure = whole.structured_outputs[num_gradients:]
        captures = list(graph.captures)
        arguments = graph.inputs[: len(graph.inputs) - len(captures)]
        upstream, totals = arguments[:num_upstream], arguments[num_upstream:]
        of_inputs, of_variables = graph.outputs[:num_gradients], graph.outputs[num_gradients:]
        given = {tensor.op for tensor in graph.inputs}
        first = _ancestors((tensor.op for tensor in of_inputs), given)
        second = _ancestors((tensor.op for tensor in of_variables), given | first)
        # Ops that run for their effects, such as those that print.
        first |= _ancestors((op for op in graph.control_outputs if op not in second), given | first | second)
        needed = {value.name: value for op in second for value in op.inputs if value.op in first}
        needed |= {value.name: value for value in of_variables if value.op in first}
        self._num_gradients = num_gradients
        definition = graph.as_graph_def()
        self.first = _imported(make, definition, first, upstream, captures, [*of_inputs, *needed.values()])
        #: Takes what `first` returned after the gradients of inputs, then the arguments of the whole pass.
        self.second = _imported(
            make, definition, second, [*needed.values(), *upstream, *totals], captures, of_variables
        )
        #: The captured tensors of both functions.
        self.captured = list(self.first.captured_inputs), list(self.second.captured_inputs)

    def gradients(self, upstream: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the gradients of inputs, and the tensors that `totals` needs."""
        made = list(self.first(*upstream))
        return made[: self._num_gradients], made[self._num_gradients :]

    def totals(self, needed: Sequence[Any], upstream: Sequence[Any], totals: Sequence[Any]) -> Any:
        """Returns the outputs of the whole pass after the gradients of inputs, in the structure of that pass."""
        made = list(self.second(*needed, *upstream, *totals))
        return tf.nest.pack_sequence_as(self._structure, made)


def _ancestors(ops: Iterable[Any], end: Collection[Any]) -> set[Any]:
    """Returns these ops and all on which they depend, without the ops in `end` and what only they depend on."""
    found: set[Any] = set()
    waiting = [op for op in ops if op not in end]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            before = (*(value.op for value in op.inputs), *op.control_inputs)
            waiting += [each for each in before if each not in found and each not in end]
    return found


def _imported(
    make: Callable[[Callable[..., Any]], Any],
    definition: tf.compat.v1.GraphDef,
    ops: Collection[Any],
    arguments: Sequence[Any],
    captures: Sequence[tuple[Any, Any]],
    outputs: Sequence[Any],
) -> Any:
    """Returns a concrete function of some ops of a graph.

    Args:
        make: makes a ``tf.function`` of a Python function.
        definition: the definition of the graph.
        ops: the ops.
        arguments: tensors of the graph that become the function's arguments.
        captures: the captures of the graph: outer tensors and the graph's placeholders of these.
        outputs: the tensors to return: of these ops, or arguments.
    """
    names = {op.name for op in ops}
    part = tf.compat.v1.GraphDef(versions=definition.versions, library=definition.library)
    for node in definition.node:
        if node.name in names:
            kept = part.node.add()
            kept.CopyFrom(node)
            # Control edges from ops of the other function are dropped: a call of the second runs after the first's.
            inputs = [name for name in node.input if not name.startswith("^") or name[1:] in names]
            del kept.input[:]
            kept.input.extend(inputs)
            # Ops have devices; those beside which TensorFlow wants some of them may be in the other half.
            kept.attr.pop("_class", None)
    # TensorFlow refuses to map tensors that no op uses.
    used = {value.name for op in ops for value in op.inputs}
    taken = [(outer, inner) for outer, inner in captures if inner.name in used]
    sources = [each.name for each in (*arguments, *(inner for _, inner in taken))]
    wanted = [each.name for each in outputs if each.name not in sources]

    def body(*given: Any) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        values = dict(zip(sources, (*given, *(graph.capture(outer) for outer, _ in taken)), strict=True))
        mapped = {name: value for name, value in values.items() if name in used}
        made = tf.graph_util.import_graph_def(part, mapped, wanted, name="half")
        values |= zip(wanted, made, strict=True)
        return [values[each.name] for each in outputs]

    return make(body).get_concrete_function(*(tf.TensorSpec(each.shape, each.dtype) for each in arguments))
