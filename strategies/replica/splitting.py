"""One weight of a layer, cut into shards that are variables of their own, each in its part of the replica.

Optimizers and gradients see the shards. Arrays of weights and files see the whole weight: in a list of variables, it
takes the place of its first shard, and the other shards are left out.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.batches.row_kinds import ShardId
from strategies.batches.row_marks import mark_shard
from strategies.replica.axis_mappings import AxisMappings
from strategies.replica.creation_context import creation_context
from strategies.replica.deferred import is_remote
from strategies.replica.driving import current_driver
from strategies.replica.fetching import fetched
from strategies.replica.placeholders import SHARDED
from strategies.replica.stored_array import StoredArray
from strategies.replica.weight_math import WeightMath

_ATTRIBUTE = "_keras_strategies_weight"


class SplitWeight(WeightMath):
    """A weight whose shards are variables.

    It can be read, assigned and computed with like a variable. All of these use the whole value, on the host or on the
    caller's device. Layers compute with the shards, and so do optimizers that treat each element by itself. Other
    optimizers, such as those that scale by norms, are given weights of this class in place of variables.

    Where shards belong to several processes, reading the weight is a collective, which all of them call; in an
    assignment, each process takes its part of the value.

    Args:
        name: the weight's name in its layer.
        shape: the shape of the whole weight.
        dim: the dimension along which it is split; counts from the end if negative.
        sizes: the sizes of the shards along `dim`.
        between: the mappings between the processes that own shards; None if one process owns all.
    """

    def __init__(
        self, name: str, shape: Sequence[int], dim: int, sizes: Sequence[int], between: AxisMappings | None = None
    ) -> None:
        self.name = name
        # A copy, since `name` is replaced for the time of an optimizer's update.
        self._name_in_path = name
        #: The id by which Keras' optimizers know a variable.
        self._unique_id = f"{name}_{id(self)}"
        self.between = between
        self.shape = tuple(shape)
        self.dim = dim % len(self.shape)
        self.sizes = tuple(sizes)
        #: Keras variables, in order along `dim`.
        self.shards: list[Any] = []
        #: Takes "constraint" or "regularizer", and the whole weight's object of this kind; returns one for each shard.
        #: It is set by the code that makes the shards.
        self.parts_of_penalty: Callable[[str, Any], Sequence[Any]] | None = None
        self._penalties: dict[str, Any] = {"constraint": None, "regularizer": None}
        #: True if Keras casts the weight to the compute dtype where its layer uses it. Shards are cast by the layer.
        self._autocast = True
        #: The variable whose elements the shards hold, if there is one; None for a slot.
        self.variable: Any = None
        #: True if `variable` is itself a shard of another weight, or if this is a slot of such a shard.
        self.is_inner = False

    def add(self, shard: Any) -> None:
        """Appends the next shard: a Keras variable of the weight's shape, but with its own size along `dim`.

        For a slot whose shards are partitioned over devices, the shard is itself a weight made of such variables.
        """
        if len(self.sizes) > 1 or self.is_inner:
            setattr(shard, _ATTRIBUTE, weakref.ref(self))
        self.shards.append(shard)
        _mark_reads(shard)

    def like(self) -> SplitWeight:
        """Returns a weight of the same form that has no shards yet."""
        return SplitWeight(self.name, self.shape, self.dim, self.sizes, self.between)

    def initializers_of_shards(
        self, initializer: Callable[..., Any], owned: Collection[int] | None = None
    ) -> list[Callable[..., tf.Tensor]]:
        """Returns an initializer for each shard; together they return the value of `initializer` for the whole weight.

        The whole value is drawn once, on the host, and freed when all `owned` shards (None: all shards) have taken
        their parts. The shards are zeros if another value follows.
        """
        if creation_context().value_follows:
            return [_zeros for _ in self.sizes]
        drawn: list[tf.Tensor] = []
        missing: set[int] = set()

        def make_initializer(index: int) -> Callable[..., tf.Tensor]:
            def draw(shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
                # Drawn eagerly even if the layer is built in a graph, which would hold the weight for good.
                with tf.init_scope(), tf.device("CPU:0"):
                    if not drawn:
                        drawn.append(tf.convert_to_tensor(initializer(self.shape, dtype=dtype), dtype))
                        missing.update(range(len(self.sizes)) if owned is None else owned)
                    part = self.part_of(drawn[0], index)
                missing.discard(index)
                if not missing:
                    drawn.clear()
                return part if tf.executing_eagerly() else tf.convert_to_tensor(part.numpy(), dtype=dtype)

            return draw

        return [make_initializer(index) for index in range(len(self.sizes))]

    @property
    def dtype(self) -> str:
        """The dtype of the variables, as Keras names it."""
        return str(self.shards[0].dtype)

    @property
    def path(self) -> str:
        """The path that the weight has on one device: the first shard's path without the shard's number."""
        path = str(self.shards[0].path)
        is_numbered = path.rpartition("/")[2] == f"{self._name_in_path}_0"
        return path.removesuffix("_0") if is_numbered else path

    def set_path(self, path: str) -> None:
        """Gives the weight, and with it the shards, another path."""
        is_numbered = path.rpartition("/")[2] == self._name_in_path
        for index, shard in enumerate(self.shards):
            # Keras sets it when a variable is made, from the scopes around it, and has no other way.
            shard._path = f"{path}_{index}" if is_numbered else path

    @property
    def trainable(self) -> bool:
        """True if the shards are trainable."""
        return bool(self.shards[0].trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for shard in self.shards:
            shard.trainable = value

    @property
    def overwrite_with_gradient(self) -> bool:
        """True if the shards are set to their gradients."""
        return bool(self.shards) and bool(getattr(self.shards[0], "overwrite_with_gradient", False))

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        for shard in self.shards:
            shard.overwrite_with_gradient = value

    @property
    def aggregation(self) -> str:
        """Keras' name of how replicas aggregate the shards."""
        return str(self.shards[0].aggregation)

    @property
    def constraint(self) -> Any:
        """The constraint of the whole weight, or None."""
        return self._penalties["constraint"]

    @constraint.setter
    def constraint(self, value: Any) -> None:
        self._penalize("constraint", value)

    @property
    def regularizer(self) -> Any:
        """The regularizer of the whole weight, or None."""
        return self._penalties["regularizer"]

    @regularizer.setter
    def regularizer(self, value: Any) -> None:
        self._penalize("regularizer", value)

    def _penalize(self, kind: str, value: Any) -> None:
        self._penalties[kind] = value
        if self.shards and self.parts_of_penalty is not None:
            for shard, own in zip(self.shards, self.parts_of_penalty(kind, value), strict=True):
                setattr(shard, kind, own)

    def part_of(self, value: Any, index: int) -> Any:
        """Returns shard `index` of ``value``, which has the weight's shape."""
        bounds = [0, *itertools.accumulate(self.sizes)]
        where = [slice(0, size) for size in self.shape]
        where[self.dim] = slice(bounds[index], bounds[index + 1])
        if isinstance(value, StoredArray):
            return value.part(tuple(where))
        part = value[tuple(where)]
        if self.dim == 0 and tf.is_tensor(part) and tf.executing_eagerly():
            # A slice of rows is a view, which would keep the whole value alive as long as the shard.
            return tf.raw_ops.DeepCopy(x=part)
        return part

    def assign(self, value: Any) -> None:
        """Sets the weight.

        Raises:
            ValueError: ``value`` has another shape.
        """
        if not tf.is_tensor(value) and not isinstance(value, StoredArray):
            value = np.asarray(value)
        if tuple(value.shape) != self.shape:
            raise ValueError(f"The weight {self.name!r} has shape {self.shape}. Received: a value of {value.shape}.")
        # A process that drives the others sets their shards, too.
        for index, shard in enumerate(self.shards) if current_driver() is not None else self.owned():
            shard.assign(self.part_of(value, index))

    def assign_add(self, value: Any) -> None:
        """Adds ``value``, of the weight's shape."""
        if self.between is None:
            self.assign(self + value)
            return
        for index, shard in self.owned():
            shard.assign_add(self.part_of(value, index))

    def assign_sub(self, value: Any) -> None:
        """Subtracts ``value``, of the weight's shape."""
        if self.between is None:
            self.assign(self - value)
            return
        for index, shard in self.owned():
            shard.assign_sub(self.part_of(value, index))

    def numpy(self) -> np.ndarray:
        """Returns the whole weight; if several processes own its shards, all of them call it."""
        whole = np.empty(self.shape, tf.as_dtype(self.dtype).as_numpy_dtype)
        for index, shard in enumerate(self.shards):
            self.part_of(whole, index)[...] = value_of(shard)
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def read(self) -> tf.Tensor:
        """Returns the whole weight; if several processes own its shards, all of them call it."""
        if current_driver() is not None:
            return tf.convert_to_tensor(self.numpy())
        return self.joined(self.shards)

    def joined(self, values: Sequence[Any]) -> tf.Tensor:
        """Returns the whole of a value of each shard; if several processes own the shards, all of them call it.

        Args:
            values: by shard, a variable or a tensor of the shard's shape; those of other processes are ignored.
        """
        own = [tf.convert_to_tensor(values[index]) for index, _ in self.owned()]
        whole = tf.concat(own, self.dim)
        if self.between is None:
            return whole
        bounds = [0, *itertools.accumulate(self.sizes)]
        return self.between.joined(whole, self.dim, bounds[:: len(own)])

    def owned(self) -> list[tuple[int, Any]]:
        """Returns the number and variable of each shard that this process owns; of all shards if it owns none."""
        every = list(enumerate(self.shards))
        return [(index, shard) for index, shard in every if not is_remote(shard)] or every

    def __repr__(self) -> str:
        return f"<SplitWeight {self.name!r}, shape={self.shape}, {self.sizes} along {self.dim}>"


def _zeros(shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
    return tf.zeros(shape, dtype)


def weight_of(variable: Any) -> SplitWeight | None:
    """Returns the weight of which ``variable`` is a shard; None if it is whole."""
    reference = getattr(variable, _ATTRIBUTE, None)
    return None if reference is None else reference()


def shard_of(variable: Any) -> ShardId | None:
    """Returns which shard of a weight ``variable`` is; None if it is whole, or a slot."""
    weight = weight_of(variable)
    if weight is None or weight.is_inner or len(weight.sizes) == 1:
        return None
    index = next(i for i, each in enumerate(weight.shards) if each is variable)
    return id(weight), index, len(weight.sizes)


def _mark_reads(shard: Any) -> None:
    """Marks what reads of a shard return, so that numbers that are computed from some shards are found."""
    value = vars(shard).get("_value")
    # Slices over the data axis are TensorFlow's variables, and not what programs read.
    number = None if value is None or is_remote(shard) else shard_of(shard)
    if number is None:
        return
    if SHARDED in vars(value):
        # Whoever gathers it marks the gathered tensor.
        value.shard = number
        return
    for component in getattr(value, "values", [value]):
        mark_shard(component.handle, number)


def sharded_weight(variable: Any) -> SplitWeight | None:
    """Returns the weight made of a variable's shards over the data axis; None if it is not sharded over it.

    Args:
        variable: a Keras or TensorFlow variable.
    """
    value = vars(variable).get("_value")
    found: SplitWeight | None = vars(variable if value is None else value).get(SHARDED)
    return found


def value_of(variable: Any) -> np.ndarray:
    """Returns the value of a Keras variable or a split weight; if processes own parts of it, all of them call it."""
    whole = variable if isinstance(variable, SplitWeight) else sharded_weight(variable)
    return fetched(variable) if whole is None else whole.numpy()
