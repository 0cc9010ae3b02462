"""Kernels for GPUs, from TensorFlow's registry, which lists them on any machine: for which ops, in whose memory."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels


@functools.cache
def _registered(op_type: str) -> tuple[Any, ...]:
    found = list(kernels.get_registered_kernels_for_op(op_type).kernel)
    # What is registered for devices of any kind serves GPUs where nothing is registered for them.
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
    """Tells for each input, or output, of an op on a GPU if it is in the host's memory."""
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
    # A constant of int32 is in host memory, though its kernel does not say so of its one output.
    return [host or t.dtype in always for host, t in zip(found, tensors, strict=True)]
