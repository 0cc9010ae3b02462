"""One order of all collectives of a GPU, in every function that runs them.

NCCL pairs the collectives of a communicator in the order in which each process launches them, and a GPU that has
several communicators (data, tensor, pipe) can wait in one for a peer that waits in another. TensorFlow's ops start as
soon as their inputs are ready, so processes might pair different collectives: wrong sums, or a deadlock. Therefore each
device has one token, a variable that nobody reads, shared by all collectives of the process:

- in a function, each collective has a control dependency on the one traced before it;
- each collective takes the token as an input (for a broadcast, an op before it and an op after it do), so that a call,
  branch or loop that contains collectives takes it, too, and TensorFlow's automatic control dependencies order these.

Control edges stay on the device, where they cost nothing.

The resulting order is that of tracing. Processes must trace the collectives that they share in one order, as they do
if all run the same program. The stages of a pipeline in several processes trace different programs. A send ends when
it is received, so both sides have to trace all messages between them, of both directions and all channels, in one
order: that of the schedule's table, which is common to all stages. If stage 0 sends activations 1 before it receives
gradients 0, stage 1 has to receive activations 1 before it sends gradients 0.

None of this was measured on GPUs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import tensorflow as tf

from strategies.collectives.traced_ops import capturable, make_handle


class _Tokens:
    """The token of each device, and its first and last collective in each function that is being traced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[str, tf.Tensor] = {}
        # By name: an op would keep its graph alive, and so its own entry.
        self._ends: weakref.WeakKeyDictionary[tf.Graph, dict[str, tuple[str, str]]] = weakref.WeakKeyDictionary()

    def get(self, device: str) -> tf.Tensor:
        with self._lock, tf.init_scope():
            if device not in self._handles:
                self._handles[device] = make_handle(f"strategies_order_{len(self._handles)}", tf.float32, device)
                with tf.device(device):
                    tf.raw_ops.AssignVariableOp(resource=self._handles[device], value=tf.constant(0.0))
            return self._handles[device]

    def last(self, device: str) -> list[tf.Operation]:
        graph = tf.compat.v1.get_default_graph()
        ends = self._ends.get(graph, {}).get(device)
        return [] if ends is None else [graph.get_operation_by_name(ends[1])]

    def note(self, device: str, first: tf.Operation, last: tf.Operation) -> None:
        self._extend(tf.compat.v1.get_default_graph(), device, first.name, last.name)

    def continue_in(self, traced: tf.Graph, caller: tf.Graph) -> None:
        for device, (first, last) in self._ends.pop(traced, {}).items():
            before = self._ends.get(caller, {}).get(device)
            if before is not None:
                caller.get_operation_by_name(first)._add_control_inputs([caller.get_operation_by_name(before[1])])
            self._extend(caller, device, first, last)

    def _extend(self, graph: tf.Graph, device: str, first: str, last: str) -> None:
        ends = self._ends.setdefault(graph, {})
        ends[device] = ends.get(device, (first, last))[0], last


_TOKENS = _Tokens()


def in_order(device: str, op: Callable[[list[tf.Tensor]], tf.Tensor], *, takes_token: bool) -> tf.Tensor:
    """Runs a collective op on `device`, in a function, after all collectives traced for this device before.

    Args:
        device: a GPU of this process, by its full name.
        op: creates the op, from the tokens that it has to take as inputs.
        takes_token: false for ops without a token argument, broadcasts: then two other ops, which launch nothing, take
            the token before and after the op.
    """
    # Captured before any control dependency: a capture depends on nothing in the function.
    token = capturable(_TOKENS.get(device))
    with tf.device(device):
        with tf.control_dependencies(_TOKENS.last(device)):
            if takes_token:
                result = op([token])
                _TOKENS.note(device, result.op, result.op)
                return result
            entered = tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
        with tf.control_dependencies([entered]):
            result = op([])
        with tf.control_dependencies([result]):
            left = tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
    _TOKENS.note(device, entered, left)
    return result


def continue_order(traced: tf.Graph, caller: tf.Graph) -> None:
    """Orders the collectives of a graph whose ops have been added to another one, by their names, in that one."""
    _TOKENS.continue_in(traced, caller)
