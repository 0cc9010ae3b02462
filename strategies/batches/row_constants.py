"""Values that are known while a graph is traced: of its constants, and of tensors computed from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

# The largest number of elements for which TensorFlow traces `tf.ones` and the like as constants.
_LARGEST_FOLDED_FILL = 999
_COMPUTED: dict[str, Any] = {
    "AddV2": np.add,
    "ConcatV2": lambda *values: np.concatenate(values[:-1], int(values[-1])),
    "ExpandDims": lambda value, dim: np.expand_dims(value, int(dim)),
    "FloorMod": np.mod,
    "Mul": np.multiply,
    "Pack": lambda *values: np.stack(values),
    "Range": np.arange,
    "Sub": np.subtract,
}


def constant_of(tensor: Any) -> Any:
    """Returns the value of a tensor, an array, if known, also if it was taken from a static shape; else None."""
    value = tf.get_static_value(tensor)
    if value is not None or hasattr(tensor, "numpy"):
        return value
    op = tensor.op
    if op.type == "StridedSlice" and op.get_attr("shrink_axis_mask") == 1:
        whole, begin = (constant_of(each) for each in list(op.inputs)[:2])
        return None if whole is None or begin is None or begin.size != 1 else np.asarray(whole[int(begin[0])])
    if op.type == "Prod" and op.inputs[0].shape.rank == 1:
        whole = constant_of(op.inputs[0])
        return None if whole is None else np.prod(whole)
    if op.type in ("Cast", "Identity"):
        return constant_of(op.inputs[0])
    if op.type in _COMPUTED and tensor.dtype.is_integer:
        # Indices and permutations of dimensions.
        values = [constant_of(each) for each in op.inputs]
        return None if any(each is None for each in values) else np.asarray(_COMPUTED[op.type](*values))
    return None


def is_filled(op: Any) -> bool:
    """Returns True for a constant that TensorFlow made instead of a small `Fill`, as for ones of a static shape."""
    if op.type != "Const" or (op.outputs[0].shape.num_elements() or 0) > _LARGEST_FOLDED_FILL:
        return False
    value = tf.get_static_value(op.outputs[0])
    if value is None or not value.ndim or not value.size:
        return False
    if value.ndim == 1 and (value.size == 1 or not op.name.rpartition("/")[2].startswith(("Fill", "ones"))):
        # A user's list of equal numbers.
        return False
    # With one row, a user's factor such as [[0.01]] looks the same; positions are integers, which may be of one row.
    may_be_of_rows = value.shape[0] > 1 or not np.issubdtype(value.dtype, np.floating)
    return may_be_of_rows and bool(np.all(value == value.flat[0]))


def attribute_of(op: Any, name: str) -> Any:
    """Returns an attribute of an operation; None if it has none of this name."""
    try:
        return op.get_attr(name)
    except ValueError:
        return None
