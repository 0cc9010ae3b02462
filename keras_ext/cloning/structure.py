"""Copies layers of other classes than Keras' own, attribute by attribute.

Their constructors and configs are not used: many configs leave out arguments, or change them. A copy holds the same
objects as the layer, except for layers, variables and seed generators, of which it has its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_ext.cloning.state import take_attributes
from keras_ext.tensor.custom_layers import OF_TENSORFLOW
from keras_ext.tensor.gathered import gathered_class
from keras_ext.tensor.layer import SplitLayer
from strategies import layer_api
from strategies.evenly import even_sizes

#: Maps an inner layer of a copied layer to its counterpart in the copy.
Make = Callable[[Any], Any]

# Attributes that every layer makes for itself: lists of its parts, records of its calls, and methods wrapped by Keras.
_STORES = ("trainable_variables", "non_trainable_variables", "layers", "metrics", "seed_generators")
_OWN = {"_tracker", "_tracked", "_inbound_nodes", "_outbound_nodes", "build", "quantize", *(f"_{s}" for s in _STORES)}
# Attributes left by an earlier call or export.
_OF_CALLS = {"_losses", "_loss_ids", "_losses_override", "_saved_model_inputs_spec", "_saved_model_arg_spec"}
# Attributes of a model that `compile` and training make.
_OF_TRAINING = {"optimizer", "_compile_config", "history", "stop_training", "_eval_epoch_iterator"}


class CannotCopyError(ValueError):
    """A layer holds something that cannot be copied attribute by attribute."""


class Attributes:
    """Copies the objects that layers hold, each once: objects that two layers share are shared by their copies.

    Args:
        make: returns the counterpart of a held layer; called each time a layer is found.
        dims: the dim along which a weight is to be cut into shards, by the weight's id.
        rows_of_experts: the ids of experts' weights, which are distributed over the mesh axis "expert".
        weights: the ids of the weights of all layers, whose values are copied later. A variable that Keras does not
            know to be a weight, as one in a list of a plain object or in a closure, gets its value at once.
        classes: the class of a layer's copy, if it is another one, by the layer's id.
    """

    def __init__(
        self,
        make: Make,
        dims: Mapping[int, int],
        rows_of_experts: Collection[int],
        weights: Collection[int],
        classes: Mapping[int, Any] | None = None,
    ) -> None:
        self._make, self._dims, self._rows_of_experts, self._classes = make, dims, rows_of_experts, classes or {}
        self._weights = weights
        # Holds the old objects as well, so that no other object gets their id.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._looked_into: set[int] = set()

    def blank(self, layer: Any) -> Any:
        """Returns an empty layer: of a given class, of a `gathered_class` if weights are to be cut, or of its own."""
        cls: Any = self._classes.get(id(layer), type(layer))
        if not issubclass(cls, SplitLayer) and any(id(variable) in self._dims for variable in _variables_of(layer)):
            cls = gathered_class(cls)
        new = cls.__new__(cls)
        new._initialize_tracker()
        new._lock = False
        new._tracked, new._saved_model_inputs_spec, new._saved_model_arg_spec = [], None, None
        for name in ("_inbound_nodes", "_outbound_nodes", "_losses", "_losses_override"):
            setattr(new, name, [])
        new._loss_ids = set()
        return new

    def fill(self, new: Any, layer: Any) -> None:
        """Copies everything that `layer` holds to a blank layer."""
        if isinstance(new, SplitLayer):
            new.place_shards()
            # Keras reads some of these when a weight is added.
            plain = (str, int, float, type(None), keras.DTypePolicy)
            early = {name: value for name, value in vars(layer).items() if isinstance(value, plain)}
            new.__dict__.update({name: value for name, value in early.items() if name not in _OWN | OF_TENSORFLOW})
        for weight in layer_api.joined(layer._trainable_variables, only_split=True):
            self._add_weight(new, weight, trainable=True)
        for weight in layer_api.joined(layer._non_trainable_variables, only_split=True):
            self._add_weight(new, weight, trainable=False)
        self.take(new, layer, _OWN | _OF_CALLS | {"shards"})
        self.count(new, layer, _STORES)
        if layer._tracker.locked:
            new._lock_state()

    def count(self, new: Any, layer: Any, stores: Iterable[str]) -> None:
        """Makes a copy track its parts of some kinds in the order of `layer`, also those that are not attributes."""
        for store in stores:
            _, held = new._tracker.config[store]
            held.clear()
            new._tracker.stored_ids[store].clear()
            for value in layer_api.joined(getattr(layer, f"_{store}"), only_split=True):
                made = self.get(value)
                for each in made.shards if isinstance(made, layer_api.SplitWeight) else [made]:
                    new._tracker.add_to_store(store, each)

    def take(self, new: Any, layer: Any, but: set[str]) -> None:
        """Copies the attributes of `layer` except those in `but` and those of TensorFlow's tracking and of training."""
        left_out = but | OF_TENSORFLOW | (_OF_TRAINING if isinstance(layer, keras.Model) else set())
        for name, value in list(vars(layer).items()):
            if name in left_out:
                continue
            # Models make functions for training, generation etc. when first needed; `compile` drops them.
            is_made_late = isinstance(layer, keras.Model) and name.endswith("_function")
            if is_made_late and self._is_compiled_for_another(value):
                setattr(new, name, None)
            else:
                setattr(new, name, self._own_container(value, self.get(value)))

    @staticmethod
    def _own_container(value: Any, made: Any) -> Any:
        """Returns the value for a copy, with a list, dict or set of its own, which Keras wraps to track its items."""
        if made is not value or not isinstance(value, (list, dict, set)):
            return made
        return next(kind(value) for kind in (list, dict, set) if isinstance(value, kind))

    def get(self, value: Any) -> Any:
        """Returns the counterpart of an object in a layer; the same object if nothing in it belongs to the layer.

        Raises:
            CannotCopyError: the value is, or holds, an object of TensorFlow that Keras does not track.
        """
        if value is None or isinstance(value, (str, bytes, bool, int, float)):
            return value
        if isinstance(value, keras.Layer):
            return self._make(value)
        if id(value) in self._made:
            return self._made[id(value)][1]
        if isinstance(value, keras.Variable):
            made = self._new_variable(value, trainable=bool(value.trainable))
            return self._with_value(value, made)
        if isinstance(value, keras.random.SeedGenerator):
            made = self._once(value, lambda: keras.random.SeedGenerator(value._initial_seed, name=value.name))
            self._with_value(value.state, made.state)
            return made
        if isinstance(value, keras.metrics.Metric):
            return self._once(value, lambda: type(value).from_config(value.get_config()))
        if isinstance(value, keras.Optimizer):
            # `copy_training` copies it when the copy has its weights.
            return value
        if isinstance(value, (list, tuple, set, dict)):
            return self._new_container(value)
        if isinstance(value, types.MethodType):
            owner = self.get(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            made = tuple(self.get(part) for part in parts)
            is_same = all(a is b for a, b in zip(made, parts, strict=True))
            return value if is_same else functools.partial(made[0], *made[1], **made[2])
        if isinstance(value, types.FunctionType):
            return self._new_function(value)
        return self._new_object(value)

    def _once(self, value: Any, make: Callable[[], Any]) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = (value, make())
        return self._made[id(value)][1]

    def _with_value(self, variable: Any, made: Any) -> Any:
        """Returns the copy of a variable, with the variable's value if it is not a weight of a layer."""
        if id(variable) not in self._weights:
            layer_api.copy_value(variable, made)
        return made

    def _add_weight(self, new: Any, weight: Any, *, trainable: bool) -> None:
        """Adds a weight to a layer's copy, a variable or a `SplitWeight`."""
        if isinstance(weight, layer_api.SplitWeight):
            like, dim = weight.shards[0], weight.dim
        elif id(weight) in self._dims:
            like, dim = weight, self._dims[id(weight)]
        else:
            self._new_variable(weight, trainable=trainable)
            return

        def made() -> Any:
            # The part of the path before the layer's name.
            new._parent_path = like.path.rpartition("/")[0].rpartition("/")[0]
            split = new.add_split_weight(
                weight.name,
                weight.shape,
                dim,
                initializer="zeros",
                sizes=even_sizes(weight.shape[dim], new.shards.count),
                trainable=trainable,
                aggregation=like.aggregation,
                dtype=like.dtype,
            )
            take_attributes(weight, split)
            return split

        self._once(weight, made)

    def _new_variable(self, variable: Any, *, trainable: bool) -> Any:
        def made() -> Any:
            # With "data", rows that are already sharded over replicas, along either axis, stay sharded.
            spread: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if layer_api.lie_on_replicas([variable]):
                spread = layer_api.sharded_rows("data")
            elif id(variable) in self._rows_of_experts:
                spread = layer_api.sharded_rows("expert")
            with scopes_of(variable.path), spread:
                new = keras.Variable(
                    keras.initializers.Zeros(),
                    shape=variable.shape,
                    dtype=variable.dtype,
                    trainable=trainable,
                    autocast=variable._autocast,
                    aggregation=variable.aggregation,
                    synchronization=variable.synchronization,
                    name=variable.name,
                )
            take_attributes(variable, new)
            return new

        return self._once(variable, made)

    def _new_container(self, value: Any) -> Any:
        items = list(value.items()) if isinstance(value, dict) else list(value)
        made = [self.get(item) for item in items]
        if all(a is b for a, b in zip(made, items, strict=True)):
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*made)
        return next(kind(made) for kind in (list, tuple, set, dict) if isinstance(value, kind))

    def _new_function(self, function: types.FunctionType) -> Any:
        cells = function.__closure__ or ()
        if id(function) in self._looked_into:
            return function
        self._looked_into.add(id(function))
        try:
            # A cell may still be empty.
            held = [cell.cell_contents for cell in cells]
            made = [self.get(value) for value in held]
        except ValueError as error:
            if isinstance(error, CannotCopyError):
                raise
            return function
        finally:
            self._looked_into.discard(id(function))
        if all(a is b for a, b in zip(made, held, strict=True)):
            return function
        new = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(map(types.CellType, made)),
        )
        new.__kwdefaults__ = function.__kwdefaults__
        new.__dict__.update({name: v for name, v in vars(function).items() if name != "__wrapped__"})
        return new

    def _new_object(self, value: Any) -> Any:
        if hasattr(value, "assign_add") or self._is_compiled_for_another(value):
            raise CannotCopyError(f"It holds {value!r}.")
        if not _is_plain_object(value):
            return value
        # Recorded before its attributes are copied: they may refer back to it.
        new = self._once(value, lambda: copy.copy(value))
        made = {name: self.get(held) for name, held in vars(value).items()}
        if all(made[name] is held for name, held in vars(value).items()):
            self._made[id(value)] = (value, value)
            return value
        new.__dict__.update(made)
        return new

    def _is_compiled_for_another(self, value: Any) -> bool:
        """Returns True for a `tf.function` that uses something that is copied."""
        function = getattr(value, "python_function", None)
        return function is not None and self.get(function) is not function


def _variables_of(layer: Any) -> list[Any]:
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def _is_plain_object(value: Any) -> bool:
    """Returns True for an object of a user's own class, which may hold layers."""
    libraries = {"builtins", "functools", "typing", "keras", "tensorflow", "numpy", "google", "tokenizers"}
    libraries |= {"strategies", "keras_ext"}
    is_data = not isinstance(value, (type, types.ModuleType)) and not callable(getattr(value, "__get__", None))
    return is_data and hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in libraries


@contextlib.contextmanager
def scopes_of(path: str) -> Iterator[None]:
    """Runs the block with name scopes in which an object named like the last part of `path` has this path."""
    with contextlib.ExitStack() as scopes:
        for name in (path or "").split("/")[:-1]:
            if name:
                scopes.enter_context(keras.name_scope(name, deduplicate=False))
        yield
