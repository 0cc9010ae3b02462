"""TensorFlow's reductions over the devices of one process, as the engine uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import CollectiveAllReduce, PerReplica
from strategies.engine.layout import local_values
from strategies.topology.devices import is_gpu


def bound_reduction(devices: tuple[str, ...], options: Any, collective_keys: Any) -> Any:
    """Returns TensorFlow's reduction for these devices and no others; its members are numbered by `collective_keys`."""
    reduction = CollectiveAllReduce(
        devices=devices, group_size=len(devices), options=options, collective_keys=collective_keys
    )
    adapt(reduction)
    return reduction


def are_int32(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """True for what TensorFlow sums on the host."""
    return any(v.dtype == tf.int32 for value, _ in pairs for v in local_values(value))


def without_gradient(value: Any) -> Any:
    """Returns the tensors of ``value``, with a border that no gradient passes.

    None would: a reduction has a gradient of its own. But TensorFlow searches the graph behind a reduction for
    variables, through all that the other replicas have done so far, at every reduction of a model anew.
    """
    if isinstance(value, tf.Tensor):
        return tf.stop_gradient(value)
    if not isinstance(value, PerReplica) or not all(isinstance(v, tf.Tensor) for v in value.values):
        return value
    components = []
    for component in value.values:
        with tf.device(component.device):
            components.append(tf.stop_gradient(component))
    return PerReplica(tuple(components))


def adapt(reduction: Any) -> None:
    """Has TensorFlow's collectives numbered when they are traced, several dtypes packed, and bfloat16 reduced on GPUs.

    It numbers them anew at every call of a tf.function, by a placeholder that its loops do not feed:
    steps_per_execution > 1 fails. All shapes here are static, so one number each is enough.

    It concatenates tensors of different dtypes, as of a model of bfloat16 whose last layer is float32, and fails.

    Its kernels refuse sums of bfloat16 on GPUs, and have none that gather it: these are carried as float32, and as the
    same bits of float16.
    """
    for launcher in getattr(reduction, "_launchers", ()):
        launcher._use_unique_instance_key = lambda: False
        launcher.batch_all_reduce = functools.partial(_packed_by_dtype, launcher.batch_all_reduce)
        if is_gpu(launcher._device):
            launcher.all_reduce = functools.partial(_reduced, launcher.all_reduce)
            launcher._all_gather = functools.partial(_gathered, launcher._all_gather)


def _packed_by_dtype(
    batch_all_reduce: Callable[..., Sequence[tf.Tensor]], packs: Sequence[Sequence[tf.Tensor]], options: Any = None
) -> list[tf.Tensor]:
    """As `batch_all_reduce`, which takes tensors that travel together and returns the results as one list."""
    values = [value for pack in packs for value in pack]
    split: dict[tuple[int, tf.DType], list[int]] = {}
    first = 0
    for number, pack in enumerate(packs):
        for i in range(first, first + len(pack)):
            split.setdefault((number, values[i].dtype), []).append(i)
        first += len(pack)
    results: list[Any] = [None] * len(values)
    made = batch_all_reduce([[values[i] for i in indices] for indices in split.values()], options)
    for i, result in zip((i for indices in split.values() for i in indices), made, strict=True):
        results[i] = result
    return results


def _reduced(all_reduce: Callable[..., tf.Tensor], value: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
    # Casts to the same dtype are none.
    carried = tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value
    return tf.cast(all_reduce(carried, *args, **kwargs), value.dtype)


def _gathered(all_gather: Callable[..., tf.Tensor], value: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
    if value.dtype != tf.bfloat16:
        return all_gather(value, *args, **kwargs)
    return tf.bitcast(all_gather(tf.bitcast(value, tf.float16), *args, **kwargs), tf.bfloat16)
