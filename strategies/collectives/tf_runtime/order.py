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
from collections.abc import Callable

import tensorflow as tf

from strategies.collectives.traced_ops import ORDER, capturable, make_handle


class _Tokens:
    """The token of each device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[str, tf.Tensor] = {}

    def get(self, device: str) -> tf.Tensor:
        with self._lock, tf.init_scope():
            if device not in self._handles:
                self._handles[device] = make_handle(f"strategies_order_{len(self._handles)}", tf.float32, device)
                with tf.device(device):
                    tf.raw_ops.AssignVariableOp(resource=self._handles[device], value=tf.constant(0.0))
            return self._handles[device]


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
        with tf.control_dependencies(ORDER.last(device)):
            if takes_token:
                result = op([token])
                ORDER.note(device, result.op, result.op)
                return result
            entered = tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
        with tf.control_dependencies([entered]):
            result = op([])
        with tf.control_dependencies([result]):
            left = tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
    ORDER.note(device, entered, left)
    return result
