"""A lower bound for the time of a step, from measurements of one device and of messages. Pure.

A message costs core time, in which a process sends or receives and cannot compute, and latency, in which the message is
under way and the core can compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_parallel.cases import FLOAT_BYTES, NUM_PARTS, Case

#: Number of tokens in a sequence of the block.
_LENGTH = 64


@dataclass(frozen=True)
class Traffic:
    """The messages that one process sends in a step, all of one size; it receives the same number.

    Attributes:
        message_bytes: size of each.
        num_messages: along a pipeline the activations or the gradients of each micro-batch; of shards the all-reduces.
    """

    message_bytes: int
    num_messages: int

    @property
    def megabytes(self) -> float:
        """The size of all messages together, in units of 10^6 bytes."""
        return self.message_bytes * self.num_messages / 1e6


def traffic(case: Case) -> Traffic:
    """Returns the messages that a process sends in a step of the case."""
    row_bytes = case.width * FLOAT_BYTES
    if case.model == "dense":
        return Traffic(case.batch_size // case.num_microbatches * row_bytes, case.num_microbatches)
    if case.model == "mlp":
        # One sum of the outputs of both layers. The gradient of the inputs, which are data, is not needed.
        return Traffic(case.batch_size * row_bytes, 1)
    # Attention and the two dense layers: outputs in the forward pass, gradients of inputs in the backward pass.
    return Traffic(case.batch_size * _LENGTH * row_bytes, 4)


def least_ms(case: Case, one_device_ms: float, latency_ms: float, core_ms: float) -> float:
    """Returns the least milliseconds of a step whose processes only compute, send, receive, and wait for each other.

    Args:
        case: two equal stages, or two equal shards.
        one_device_ms: time of the same step on one device, of which a third is forward.
        latency_ms: latency of one message.
        core_ms: CPU time of a process for one message of the case: to send, to receive, or to take part in the sum.
    """
    num_messages = traffic(case).num_messages
    if case.axis == "tensor":
        return one_device_ms / NUM_PARTS + num_messages * (core_ms + latency_ms)
    slot = one_device_ms / NUM_PARTS / case.num_microbatches
    # Each pass sends or receives one message.
    num_first = 2 if case.schedule == "eager_1f1b" else 1
    return one_f_one_b_ms(case.num_microbatches, slot / 3 + core_ms, 2 * slot / 3 + core_ms, latency_ms, num_first)


def one_f_one_b_ms(num_microbatches: int, forward: float, backward: float, latency: float, num_first: int = 1) -> float:
    """Returns the time of 1F1B with two stages.

        stage 0  F0 F1 .. B0 F2 B1 F3 ..
        stage 1     F0 B0 F1 B1 F2 B2 ..

    Two micro-batches are in flight, so that every micro-batch waits once for a message; with one more, none does.

    Args:
        num_microbatches: number of micro-batches per step.
        forward, backward: time of one micro-batch in a stage.
        latency: from the end of a pass to the earliest start of the pass that needs its message.
        num_first: forward passes of stage 0 before it alternates: 1, or 2 for eager 1F1B.
    """
    outputs, gradients = [], []
    first = second = 0.0

    def go_forward() -> None:
        nonlocal first
        first += forward
        outputs.append(first)

    for _ in range(min(num_first, num_microbatches)):
        go_forward()
    for index in range(num_microbatches):
        if index + num_first < num_microbatches:
            go_forward()
        second = max(second, outputs[index] + latency) + forward + backward
        gradients.append(second)
        first = max(first, gradients[index] + latency) + backward
    return first
