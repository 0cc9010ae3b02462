"""The operations of a stage's passes: its computation, and the collectives between the shards of its layers.

One micro-batch of a block, forward from left to right, with sequence parallelism in the second line:

    attention ── all_reduce ── feed-forward ── all_reduce ──
    all_gather ── attention ── reduce_scatter ── all_gather ── feed-forward ── reduce_scatter ──

In the backward pass, each of these is in reverse order: an all-reduce where the forward pass has copied a tensor to all
shards, a reduce-scatter for an all-gather, and an all-gather for a reduce-scatter. With sequence parallelism, gradients
of weights that all shards have, such as those of a normalization, are summed as well. A stage gets whole sequences, and
joins them again for the next stage.

The order is that of the layers of `keras_ext`, with ``VocabParallelSparseCategoricalCrossentropy`` of logits in pieces;
the stages of a pipeline join the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strategies.planning.dry_run.operations import Operation, OperationKind
from strategies.planning.dry_run.stage_sizes import TABLES, StageSizes, attention_of, feed_forward_of
from strategies.schedules import Action, Kind

_NUMBERS_OF_LABEL, _NUMBER_BYTES = 3, 4


def no_gathers(part: str) -> Iterator[Operation]:
    """Yields nothing: the weights are on each rank."""
    del part
    yield from ()


def operations_of(
    action: Action, sizes: StageSizes, gathers: Callable[[str], Iterator[Operation]] = no_gathers
) -> Iterator[Operation]:
    """Yields the operations of an action, without messages between stages.

    Args:
        action: a computation.
        sizes: its stage.
        gathers: yields the all-gathers of the weights that a part of the stage uses first.
    """
    yield Operation(OperationKind.COMPUTE, str(action), work=work_of(action, sizes))
    if action.kind is Kind.FORWARD:
        yield from _forward(action, sizes, gathers)
    elif action.kind is not Kind.BACKWARD_WEIGHT:
        if sizes.is_last:
            yield from _backward_of_logits(action, sizes)
        for block in reversed(range(sizes.num_blocks)):
            if sizes.job.layout.recompute == "full":
                yield from _block_forward(action, sizes, block, again=True)
            yield from _block_backward(action, sizes, block)


def work_of(action: Action, sizes: StageSizes) -> float:
    """Returns the floating-point operations of an action on a rank.

    Args:
        action: a computation.
        sizes: its stage.
    """
    number = 2 if action.kind is Kind.BACKWARD else 1
    is_recomputed = sizes.job.layout.recompute == "full" and action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)
    return number * sizes.forward_work + (sizes.num_blocks * sizes.block_work if is_recomputed else 0.0)


def _collective(sizes: StageSizes, kind: OperationKind, what: str, num_bytes: float) -> Iterator[Operation]:
    if sizes.job.layout.num_tensor > 1:
        yield Operation(kind, what, "tensor", num_bytes=num_bytes)


def _forward(action: Action, sizes: StageSizes, gathers: Callable[[str], Iterator[Operation]]) -> Iterator[Operation]:
    if sizes.is_first:
        yield from gathers(TABLES)
        for table in ("tokens", "positions"):
            what = f"embeddings of {table} in {action}"
            yield from _collective(sizes, OperationKind.ALL_REDUCE, what, sizes.boundary_bytes)
    for block in range(sizes.num_blocks):
        yield from _block_forward(action, sizes, block, gathers)
    if sizes.job.layout.sequence_parallel:
        what = f"outputs of {action}"
        yield from _collective(sizes, OperationKind.ALL_GATHER, what, sizes.boundary_bytes)
    if sizes.is_last:
        yield from _loss(action, sizes)


def _block_forward(
    action: Action,
    sizes: StageSizes,
    block: int,
    gathers: Callable[[str], Iterator[Operation]] = no_gathers,
    *,
    again: bool = False,
) -> Iterator[Operation]:
    in_pieces, size = sizes.job.layout.sequence_parallel, sizes.boundary_bytes
    for part in (attention_of(block), feed_forward_of(block)):
        yield from gathers(part)
        what = f"{part} in {action}{', again' if again else ''}"
        if not in_pieces:
            yield from _collective(sizes, OperationKind.ALL_REDUCE, what, size)
            continue
        if part != attention_of(0):
            yield from _collective(sizes, OperationKind.ALL_GATHER, f"inputs of {what}", size)
        yield from _collective(sizes, OperationKind.REDUCE_SCATTER, what, size)


def _block_backward(action: Action, sizes: StageSizes, block: int) -> Iterator[Operation]:
    in_pieces, size = sizes.job.layout.sequence_parallel, sizes.boundary_bytes
    small = float(sizes.job.activation_bytes * sizes.job.model.hidden_size)
    for part in (feed_forward_of(block), attention_of(block)):
        what = f"gradients of {part} in {action}"
        if not in_pieces:
            yield from _collective(sizes, OperationKind.ALL_REDUCE, what, size)
            continue
        is_first = part == attention_of(0)
        if is_first:
            yield from _collective(sizes, OperationKind.ALL_GATHER, f"shortcut's {what}", size)
        yield from _collective(sizes, OperationKind.ALL_GATHER, what, size)
        yield from _collective(sizes, OperationKind.ALL_REDUCE, f"{what}, bias", small)
        if is_first:
            # The inputs are whole.
            yield from _collective(sizes, OperationKind.ALL_REDUCE, f"inputs' {what}", size)
            continue
        yield from _collective(sizes, OperationKind.REDUCE_SCATTER, f"inputs' {what}", size)
        for name in ("scale", "offset"):
            yield from _collective(sizes, OperationKind.ALL_REDUCE, f"{what}, {name} of the normalization", small)


def _loss(action: Action, sizes: StageSizes) -> Iterator[Operation]:
    layout, model = sizes.job.layout, sizes.job.model
    if layout.num_stages > 1:
        yield from _collective(sizes, OperationKind.ALL_GATHER, f"logits in {action}", sizes.logits_bytes)
        return
    numbers = _NUMBERS_OF_LABEL * layout.microbatch_size * model.sequence_length * layout.num_tensor
    what = f"maxima and sums of logits in {action}"
    yield from _collective(sizes, OperationKind.ALL_GATHER, what, float(_NUMBER_BYTES * numbers))


def _backward_of_logits(action: Action, sizes: StageSizes) -> Iterator[Operation]:
    kind = OperationKind.REDUCE_SCATTER if sizes.job.layout.sequence_parallel else OperationKind.ALL_REDUCE
    yield from _collective(sizes, kind, f"gradients of the inputs of logits in {action}", sizes.boundary_bytes)
