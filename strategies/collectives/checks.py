"""Checks of the arguments of collectives, before any communication."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_ARITHMETIC = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
_OPS = ("sum", "mean", "min", "max")


def check_values(values: Sequence[tf.Tensor], num_local: int, arithmetic: bool) -> list[tf.Tensor]:
    """Returns the values as tensors; refuses a wrong number of them, and dtypes that differ or are not supported."""
    if isinstance(values, tf.Tensor) or len(values) != num_local:
        received = f"one tensor of shape {values.shape}" if isinstance(values, tf.Tensor) else f"{len(values)}"
        raise ValueError(
            f"Expected a list with one value for each coordinate of this process: {num_local}. Received: {received}."
        )
    tensors = [tf.convert_to_tensor(value) for value in values]
    if not tensors:  # This process is neither source nor target of a channel.
        return tensors
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise ValueError(
            f"All values of one call must have one dtype; cast them. Received: {[t.dtype.name for t in tensors]}."
        )
    allowed = _ARITHMETIC if arithmetic else (*_ARITHMETIC, tf.bool)
    if tensors[0].dtype not in allowed:
        raise ValueError(
            f"Cast the values to one of {[dtype.name for dtype in allowed]}. Received: {tensors[0].dtype.name}."
        )
    return tensors


def check_lists(values: Sequence[Sequence[tf.Tensor]], num_local: int) -> list[list[tf.Tensor]]:
    """Returns the values as lists; refuses a wrong number of lists, and lists that differ in length."""
    if isinstance(values, tf.Tensor) or len(values) != num_local or any(isinstance(own, tf.Tensor) for own in values):
        raise ValueError(
            f"Expected a list with a list of tensors for each coordinate of this process: {num_local}. Received: "
            f"{[type(own).__name__ for own in values]}."
        )
    if len({len(own) for own in values}) > 1:
        raise ValueError(
            f"All coordinates must have as many tensors. Received: {[len(own) for own in values]} of them."
        )
    return [list(own) for own in values]


def check_shapes(tensors: Sequence[tf.Tensor], axis: str, free_dim: int | None) -> None:
    """Refuses members of one group whose shapes differ, except along `free_dim`."""
    shapes = [tensor.shape for tensor in tensors]
    if any(shape.rank is None for shape in shapes):
        raise ValueError(f"The number of dimensions must be known; call set_shape. Received shapes: {shapes}.")
    for shape in shapes[1:]:
        same = shape.rank == shapes[0].rank
        for dim, (one, other) in enumerate(zip(shapes[0], shape, strict=False)):
            free = free_dim is not None and dim == free_dim % max(1, shapes[0].rank)
            same = same and (free or one is None or other is None or one == other)
        if not same:
            raise ValueError(
                f"Values along mesh axis {axis!r} must have one shape"
                f"{'' if free_dim is None else f' except in dimension {free_dim}'}. "
                f"Received: {[str(s) for s in shapes]}."
            )


def check_op(op: str, allowed: Sequence[str] = _OPS) -> None:
    """Refuses an operation that is not one of `allowed`."""
    if op not in allowed:
        raise ValueError(f"The operation must be one of {list(allowed)}. Received: {op!r}.")


def check_floating(dtype: tf.DType, what: str) -> None:
    """Refuses integers, which the operation would silently round."""
    if not dtype.is_floating:
        raise ValueError(
            f"{what} of integers is not defined: ask for the sum and divide, or cast to a float first. "
            f"Received dtype: {dtype.name}."
        )


def check_dim(dim: int, num_dims: int) -> int:
    """Returns a dimension as a non-negative number; refuses one that the tensor does not have."""
    if not -num_dims <= dim < num_dims:
        raise ValueError(f"A tensor of {num_dims} dimensions has no dimension {dim}.")
    return dim % num_dims


def check_divisible(tensors: Sequence[tf.Tensor], dim: int, num_parts: int, axis: str) -> None:
    """Refuses tensors whose size along `dim`, where known, is not divisible by `num_parts`."""
    for tensor in tensors:
        size = tensor.shape[dim]
        if size is not None and size % num_parts:
            below = size // num_parts * num_parts
            raise ValueError(
                f"Dimension {dim} must be divisible by {num_parts}, the size of mesh axis {axis!r}; the "
                f"nearest sizes that are: {below} and {below + num_parts}. Received shape: {tensor.shape}."
            )


def check_position(position: int, size: int, axis: str) -> None:
    """Refuses a position outside the axis."""
    if not 0 <= position < size:
        raise ValueError(f"Mesh axis {axis!r} has positions 0 to {size - 1}. Received: {position}.")


def check_pairs(pairs: Sequence[tuple[int, int]], size: int, axis: str) -> None:
    """Refuses pairs in which a position sends or receives more than once."""
    for source, target in pairs:
        check_position(source, size, axis)
        check_position(target, size, axis)
    for side, positions in (("sends", [s for s, _ in pairs]), ("receives", [t for _, t in pairs])):
        if len(set(positions)) != len(positions):
            raise ValueError(f"A position {side} more than once. Received pairs: {list(pairs)}.")


def check_tag(tag: int, num_messages: int, used: set[int], what: str) -> None:
    """Adds a tag to `used`; refuses one out of range or already used."""
    if not 0 <= tag < num_messages or tag in used:
        raise ValueError(
            f"This channel carries tags 0 to {num_messages - 1}, each once. Received: {what} with tag {tag} "
            f"after {sorted(used)}."
        )
    used.add(tag)


def check_shape_count(num_shapes: int, num_targets: int) -> None:
    """Refuses a number of shapes other than that of the receiving coordinates of this process."""
    if num_shapes != num_targets:
        raise ValueError(
            f"Expected one shape for each coordinate of this process at the target position: {num_targets}. "
            f"Received: {num_shapes}."
        )
