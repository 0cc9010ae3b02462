"""GPU kernels in TensorFlow's registry, which any machine can read: for which ops, with which arguments on the host."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels


@functools.cache
def _registered(op_type: str) -> tuple[Any, ...]:
    found = list(kernels.get_registered_kernels_for_op(op_type).kernel)
    # Kernels registered for any device serve GPUs where none are registered for GPUs.
    return tuple(k for k in found if k.device_type == "GPU") + tuple(k for k in found if k.device_type == "DEFAULT")


def kernel_of(op: tf.Operation) -> Any | None:
    """Returns the definition of the kernel that would run an op on a GPU; None if there is none."""
    return next((kernel for kernel in _registered(op.type) if _takes(kernel, op)), None)


def _takes(kernel: Any, op: tf.Operation) -> bool:
    for constraint in kernel.constraint:
        value = op.get_attr(constraint.name)
        allowed = set(constraint.allowed_values.list.type)
        given = value if isinstance(value, list) else [value]
        if any(tf.as_dtype(each).as_datatype_enum not in allowed for each in given):
            return False
    return True


def on_host(op: tf.Operation, kernel: Any | None, *, inputs: bool) -> list[bool]:
    """Returns for each input, or output, of an op on a GPU whether it is in host memory."""
    tensors = list(op.inputs) if inputs else list(op.outputs)
    names = set(kernel.host_memory_arg) if kernel is not None else set()
    found: list[bool] = []
    for arg in op.op_def.input_arg if inputs else op.op_def.output_arg:
        count = 1
        if arg.number_attr:
            count = op.get_attr(arg.number_attr)
        elif arg.type_list_attr:
            count = len(op.get_attr(arg.type_list_attr))
        found += [arg.name in names] * count
    always = (tf.resource, tf.string, tf.variant)
    # An int32 constant is in host memory, although its kernel does not declare that for its output.
    return [host or t.dtype in always for host, t in zip(found, tensors, strict=True)]
