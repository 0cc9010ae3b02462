"""One weight of a layer, cut into shards that are variables of their own, each in its part of the replica.

Optimizers and gradients see the shards. What looks at a model from outside, arrays of weights and files, sees the
whole weight: the first shard stands for it in a list of variables, the others stand for nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.axis_mappings import AxisMappings
from strategies.replica.deferred import is_remote
from strategies.replica.driving import current_driver
from strategies.replica.fetching import fetched
from strategies.replica.stand_ins import SHARDED
from strategies.replica.stored_array import StoredArray

_ATTRIBUTE = "_keras_strategies_weight"


class SplitWeight:
    """A weight whose shards are variables.

    It can be read, assigned and computed with like a variable. All of it goes through the whole value, on the host or
    where the caller is: layers compute with the shards, and so do optimizers, if they look at each number by itself.
    Those that do not, which scale by norms for instance, are given weights of this class in place of variables.

    Where shards belong to several processes, reading it is a collective, which all of them call; to assign, each takes
    its part of the value.

    Args:
        name: the weight's name in its layer.
        shape: of the whole weight.
        dim: along which it is cut; counts from the end if negative.
        sizes: of the shards along `dim`.
        between: joins the processes to which shards belong; None if there is one.
    """

    def __init__(
        self, name: str, shape: Sequence[int], dim: int, sizes: Sequence[int], between: AxisMappings | None = None
    ) -> None:
        self.name = name
        # An optimizer that asks for the name in an update is given another one for the time.
        self._name_in_path = name
        #: By which Keras' optimizers know a variable.
        self._unique_id = f"{name}_{id(self)}"
        self.between = between
        self.shape = tuple(shape)
        self.dim = dim % len(self.shape)
        self.sizes = tuple(sizes)
        #: Keras variables, in order along `dim`.
        self.shards: list[Any] = []
        #: Given a constraint or regularizer of the whole weight and its kind, returns one for each shard; set by who
        #: makes the shards.
        self.parts_of_penalty: Callable[[str, Any], Sequence[Any]] | None = None
        self._penalties: dict[str, Any] = {"constraint": None, "regularizer": None}
        #: True if Keras casts the weight to the compute dtype where its layer uses it. Shards are cast by the layer.
        self._autocast = True
        #: The variable whose elements the shards are, if it is one; None of a slot.
        self.variable: Any = None
        #: True if that is a shard of another weight, or this a slot of such a one.
        self.is_inner = False

    def add(self, shard: Any) -> None:
        """Takes the next shard: a Keras variable of the weight's shape, but of its own size along `dim`.

        Of a slot whose shards are dealt out among devices, a weight of such variables.
        """
        if len(self.sizes) > 1 or self.is_inner:
            setattr(shard, _ATTRIBUTE, weakref.ref(self))
        self.shards.append(shard)

    def like(self) -> SplitWeight:
        """Returns a weight of the same form that has no shards yet."""
        return SplitWeight(self.name, self.shape, self.dim, self.sizes, self.between)

    def initializers_of_shards(
        self, initializer: Callable[..., Any], owned: Collection[int] | None = None
    ) -> list[Callable[..., tf.Tensor]]:
        """Returns an initializer for each shard: together they make what `initializer` makes of the whole weight.

        That is drawn once, on the host, and dropped when the `owned` shards, all if None, have had their parts.
        """
        drawn: list[tf.Tensor] = []
        missing: set[int] = set()

        def of_shard(index: int) -> Callable[..., tf.Tensor]:
            def draw(shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
                # Eagerly, wherever the layer is built: a graph would hold the weight for good.
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

        return [of_shard(index) for index in range(len(self.sizes))]

    @property
    def dtype(self) -> str:
        """Of the variables, as Keras names it."""
        return str(self.shards[0].dtype)

    @property
    def value(self) -> SplitWeight:
        """Itself: what an optimizer takes for the variable behind Keras'."""
        return self

    @property
    def path(self) -> str:
        """That on one device: the first shard's, without the shard's number."""
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
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

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
        """Returns what shard `index` holds of ``value``, which has the weight's shape."""
        bounds = [0, *itertools.accumulate(self.sizes)]
        where = [slice(0, size) for size in self.shape]
        where[self.dim] = slice(bounds[index], bounds[index + 1])
        if isinstance(value, StoredArray):
            return value.part(tuple(where))
        part = value[tuple(where)]
        if self.dim == 0 and tf.is_tensor(part) and tf.executing_eagerly():
            # Rows are a view, which would hold all of the value for as long as a shard has them.
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
        # One process that drives the others sets their shards, too.
        for index, shard in enumerate(self.shards) if current_driver() is not None else self._owned():
            shard.assign(self.part_of(value, index))

    def assign_add(self, value: Any) -> None:
        """Adds ``value``, of the weight's shape."""
        if self.between is None:
            self.assign(self + value)
            return
        for index, shard in self._owned():
            shard.assign_add(self.part_of(value, index))

    def assign_sub(self, value: Any) -> None:
        """Subtracts ``value``, of the weight's shape."""
        if self.between is None:
            self.assign(self - value)
            return
        for index, shard in self._owned():
            shard.assign_sub(self.part_of(value, index))

    def numpy(self) -> np.ndarray:
        """Returns the whole weight; where processes hold its shards, all of them call it."""
        whole = np.empty(self.shape, tf.as_dtype(self.dtype).as_numpy_dtype)
        for index, shard in enumerate(self.shards):
            self.part_of(whole, index)[...] = value_of(shard)
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        if current_driver() is not None:
            return tf.convert_to_tensor(self.numpy(), dtype)
        own = [tf.convert_to_tensor(shard) for _, shard in self._owned()]
        whole = tf.concat(own, axis=self.dim, name=name)
        if self.between is not None:
            bounds = [0, *itertools.accumulate(self.sizes)]
            whole = self.between.joined(whole, self.dim, bounds[:: len(own)])
        return whole if dtype is None else tf.cast(whole, dtype)

    def _owned(self) -> list[tuple[int, Any]]:
        """Number and variable of the shards that this process holds; of all, if it holds none."""
        every = list(enumerate(self.shards))
        return [(index, shard) for index, shard in every if not is_remote(shard)] or every

    def __add__(self, other: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) + other

    def __sub__(self, other: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) - other

    def __mul__(self, other: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) * other

    def __truediv__(self, other: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) / other

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<SplitWeight {self.name!r}, shape={self.shape}, {self.sizes} along {self.dim}>"


def weight_of(variable: Any) -> SplitWeight | None:
    """The weight of which ``variable`` is a shard; None if it is whole."""
    reference = getattr(variable, _ATTRIBUTE, None)
    return None if reference is None else reference()


def check_frozen(variables: Iterable[Any]) -> None:
    """Checks that the shards of each split weight are trainable or frozen together.

    Raises:
        ValueError: ``trainable`` was set on some shards of a weight only.
    """
    for variable in variables:
        weight = weight_of(variable)
        if weight is not None and bool(variable.trainable) != weight.trainable:
            attribute = weight.path.rpartition("/")[2]
            raise ValueError(
                f"The shards of the split weight {weight.path!r} are not all trainable, nor all frozen: a layer's "
                "`weights` and `trainable_weights` list shards. Set `trainable` of the whole weight, as in "
                f"`layer.{attribute}.trainable = False`, or of each shard. "
                f"Received: {[bool(shard.trainable) for shard in weight.shards]} of {len(weight.shards)} shards."
            )


def whole_of(variable: Any) -> SplitWeight | None:
    """The whole weight, as a model has it, of which ``variable`` is a shard, or a shard of one; None if it is whole."""
    weight = weight_of(variable)
    if weight is None:
        return sharded_weight(variable)
    return whole_of(weight if weight.variable is None else weight.variable) or weight


def sharded_weight(variable: Any) -> SplitWeight | None:
    """The shards over the devices of the data axis of a variable, of Keras or TensorFlow; None if it is in none."""
    value = vars(variable).get("_value")
    found: SplitWeight | None = vars(variable if value is None else value).get(SHARDED)
    return found


def joined(variables: Sequence[Any], *, only_split: bool = False) -> list[Any]:
    """Returns ``variables`` with each weight's shards replaced by the weight, where the first of them stood.

    Args:
        variables: of Keras.
        only_split: leave variables alone of which replicas hold a shard each, but which a layer has as one.
    """
    result: list[Any] = []
    seen: set[int] = set()
    for variable in variables:
        weight = weight_of(variable) if only_split else whole_of(variable)
        if weight is None:
            result.append(variable)
        elif id(weight) not in seen:
            seen.add(id(weight))
            result.append(weight)
    return result


def value_of(variable: Any) -> np.ndarray:
    """Returns the value of a Keras variable or of a split weight; where processes hold parts, all of them call it."""
    whole = variable if isinstance(variable, SplitWeight) else sharded_weight(variable)
    return fetched(variable) if whole is None else whole.numpy()


class Slots:
    """Groups an optimizer's slots of shards: the k-th slots of all shards of a weight are one slot of the weight."""

    def __init__(self) -> None:
        self._groups: weakref.WeakKeyDictionary[SplitWeight, list[SplitWeight]] = weakref.WeakKeyDictionary()

    def note(self, weight: SplitWeight, shard: Any, slot: Any) -> None:
        """Remembers that ``slot`` was made for ``shard`` of ``weight``, a variable of the same shape."""
        groups = self._groups.setdefault(weight, [])
        position = next(i for i, other in enumerate(weight.shards) if other is shard)
        # The first group that has no slot of this shard yet.
        group = next((group for group in groups if len(group.shards) == position), None)
        if group is None:
            group = weight.like()
            groups.append(group)
            outer = None if weight.variable is None else weight_of(weight.variable)
            if outer is not None:
                self.note(outer, weight.variable, group)
        group.add(slot)
