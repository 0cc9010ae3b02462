"""TensorFlow's reductions over the devices of one process, as the engine uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import CollectiveAllReduce, PerReplica
from strategies.topology.devices import is_gpu


def bound_reduction(devices: tuple[str, ...], options: Any, collective_keys: Any) -> Any:
    """Returns TensorFlow's reduction for these devices only; `collective_keys` numbers its members."""
    reduction = CollectiveAllReduce(
        devices=devices, group_size=len(devices), options=options, collective_keys=collective_keys
    )
    adapt(reduction)
    return reduction


def without_gradient(value: Any) -> Any:
    """Returns ``value`` with ``tf.stop_gradient`` applied to its tensors.

    No gradient would flow through them anyway: a reduction has a gradient of its own. But at every reduction TensorFlow
    searches the graph of its inputs for variables, through all that the other replicas have computed so far.
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
    """Patches TensorFlow's collectives: keys fixed at tracing, packs split by dtype, bfloat16 supported on GPUs.

    TensorFlow gives collectives new keys at every call of a tf.function, by a placeholder that its loops do not feed:
    steps_per_execution > 1 fails. All shapes here are static, so one key each is enough.

    It concatenates tensors of different dtypes, as of a bfloat16 model whose last layer is float32, and fails.

    Its GPU kernels refuse sums of bfloat16, and have none that gather it: sums are sent as float32, gathers as float16
    with the same bits.
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
    """Calls `batch_all_reduce` with each pack split by dtype; returns the results as one list, in the order given."""
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
    # A cast to the same dtype adds no op.
    carried = tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value
    return tf.cast(all_reduce(carried, *args, **kwargs), value.dtype)


def _gathered(all_gather: Callable[..., tf.Tensor], value: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
    if value.dtype != tf.bfloat16:
        return all_gather(value, *args, **kwargs)
    return tf.bitcast(all_gather(tf.bitcast(value, tf.float16), *args, **kwargs), tf.bfloat16)
