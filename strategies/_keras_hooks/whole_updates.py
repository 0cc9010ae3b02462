"""Optimizers that look at more than one number at a time get whole weights in place of shards.

An elementwise update, as Adam's, is the same for a shard as for the whole. LAMB divides by norms, Adafactor keeps means
of rows and columns, and a user's own class is unknown: for these, shards are joined, and assigned values are split
again. This costs the memory of one weight at a time, on the first device of each replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.keras_versions import WRAPPING_OPTIMIZERS
from strategies._keras_hooks.wrapping import spanning_parts
from strategies.replica.owners import is_first_owner
from strategies.replica.parts import ReplicaParts
from strategies.replica.splitting import SplitWeight, weight_of
from strategies.replica.whole_weights import joined

_BY_NUMBER = (
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adamax,
    keras.optimizers.Ftrl,
    keras.optimizers.Nadam,
    keras.optimizers.Lion,
)


#: Methods of optimizers through which gradients pass, and which a user's class may override.
_ON_GRADIENTS = ("apply", "apply_gradients", "_clip_gradients", "_backend_apply_gradients", "_backend_update_step")


def inner_optimizers(optimizer: keras.Optimizer) -> list[keras.Optimizer]:
    """Returns the optimizers that an optimizer wraps."""
    wrapped = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [each for each in wrapped if isinstance(each, keras.Optimizer)]


def some_need_whole(optimizer: keras.Optimizer) -> bool:
    """Returns True if an optimizer, or one that it wraps, gets whole weights where updates are sharded."""
    inner = inner_optimizers(optimizer)
    if inner:
        return any(map(some_need_whole, inner))
    # An optimizer that chooses its inner ones by the variables has none before it is built.
    return isinstance(optimizer, WRAPPING_OPTIMIZERS) or needs_whole(optimizer) or overrides_gradients(optimizer)


def overrides_gradients(optimizer: keras.Optimizer) -> bool:
    """Returns True if the optimizer's class overrides a method that processes gradients: it may need whole ones."""
    cls = optimizer.__class__
    return any(getattr(cls, name) not in [getattr(known, name) for known in _BY_NUMBER] for name in _ON_GRADIENTS)


def overrides_apply(optimizer: keras.Optimizer) -> bool:
    """Returns True if the program's class overrides ``apply``, which gets all gradients of a step together."""
    owner = next(cls for cls in optimizer.__class__.__mro__ if "apply" in vars(cls))
    return owner.__module__.partition(".")[0] != "keras"


def needs_whole(optimizer: keras.Optimizer) -> bool:
    """Returns True if the optimizer's update of one number may depend on other numbers of the weight."""
    step = optimizer.__class__.update_step
    return not isinstance(optimizer, WRAPPING_OPTIMIZERS) and all(step is not cls.update_step for cls in _BY_NUMBER)


def whole_pairs(
    optimizer: keras.Optimizer, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Returns gradients and variables, with whole weights in place of shards if the optimizer needs them."""
    if not needs_whole(optimizer):
        return gradients, variables
    if variables is None:
        variables = [shard for v in optimizer._trainable_variables for shard in shards_of(v)]
    if not any(weight_of(variable) for variable in variables):
        return gradients, variables
    whole = joined(variables)
    found = dict(zip(map(id, variables), gradients, strict=True))
    return [_whole_gradient([found.get(id(s)) for s in shards_of(v)], v) for v in whole], whole


def shards_of(variable: Any) -> list[Any]:
    """Returns the shards of a split weight; any other variable alone."""
    return variable.shards if isinstance(variable, SplitWeight) else [variable]


def _whole_gradient(gradients: list[Any], variable: Any) -> Any:
    if not isinstance(variable, SplitWeight):
        return gradients[0]
    if all(gradient is None for gradient in gradients):
        return None
    parts = spanning_parts()
    found = list(zip(gradients, variable.shards, strict=True))
    if parts is not None:
        found = [(gradient, shard) for gradient, shard in found if is_first_owner(parts, shard, ("tensor",))]
    dense = [
        tf.zeros(shard.shape, shard.dtype) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, shard in found
    ]
    if parts is None or not parts.crosses("tensor"):
        return tf.concat(dense, axis=variable.dim)
    none = [0 if dim == variable.dim else size for dim, size in enumerate(variable.shape)]
    own = tf.concat(dense, axis=variable.dim) if dense else tf.zeros(none, variable.dtype)
    return _gathered(own, variable, parts)


def _gathered(own: tf.Tensor, weight: SplitWeight, parts: ReplicaParts) -> tf.Tensor:
    """All-gathers a weight's gradient from the processes along "tensor", in the order of its shards."""
    if parts.groups.collectives is None:
        raise RuntimeError("There are no other processes.")
    is_even = len(set(weight.sizes)) == 1 and len(weight.sizes) == parts.mesh.axis_size("tensor")
    gathered = parts.groups.collectives.all_gather(
        [own], "tensor", weight.dim, equal_sizes=is_even, differentiable=False
    )
    return gathered[0]
