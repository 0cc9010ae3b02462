"""Trains a model for a few steps and shows what each step computed; then the model is as it was before.

Gradients are read from the slots of an optimizer that changes no weights: Adam with a learning rate and a beta_1 of 0
has the gradient as its first moment. It works on every mesh, where gradients are sharded as the slots are.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.addresses import TensorFlowTrainer, Trainer
from strategies._keras_hooks.compared_batches import Batch, rows_of
from strategies._keras_hooks.compared_records import Entry, Recorded, Stage, State
from strategies._keras_hooks.layer_outputs import layer_outputs, name_of
from strategies._keras_hooks.model_state import named_state, set_named_state
from strategies._keras_hooks.plain_copies import without_strategy
from strategies._keras_hooks.shapes import shapes_of
from strategies._keras_hooks.wrapping import overrides
from strategies.comparison import GRADIENT, LOG, OUTPUT, OUTPUTS, SLOT, STATE, WEIGHT
from strategies.replica.overwritten import is_overwritten
from strategies.replica.weight_slices import WeightSlice
from strategies.replica.whole_weights import joined


def takes_inputs(model: Any, batch: Batch) -> bool:
    """Returns True if a model can be called on the inputs of a batch.

    One with a `train_step` of its own may have no `call`, as adversarial networks, or one that takes something else, as
    siamese networks. An unbuilt model is built.
    """
    if type(model).call is keras.Model.call:
        return False
    if model.built and not overrides(model, TensorFlowTrainer, "train_step"):
        return True
    x = rows_of(batch.x, 0, 1)
    try:
        # A model that is built is called on symbolic tensors: its seeds and counters do not change.
        if model.built:
            shapes_of(model, x)
        else:
            model(x)
    # The program's code may raise anything; if there is a fault in it, its step raises it again.
    except Exception:
        return False
    return True


def optimizers_of(model: Any) -> dict[str, Any]:
    """Returns the optimizers of a model by the names of its attributes."""
    return {name: each for name, each in vars(model).items() if isinstance(each, keras.Optimizer)}


def weights_of(optimizer: Any) -> list[Any]:
    """Returns the weights that an optimizer updates: whole ones."""
    found: list[Any] = joined(_built_with(optimizer))
    return found


def _built_with(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer was built with: a sharded one has slices in place of them."""
    known = optimizer._trainable_variables
    return list(known[0].partition.variables if known and isinstance(known[0], WeightSlice) else known)


def num_stages(batches: Sequence[Batch]) -> int:
    """Returns the number of stages that :meth:`ComparedTraining.stages` yields."""
    return 2 + len(batches)


class ComparedTraining:
    """Steps of one model on the same batches.

    Args:
        model: a compiled model whose optimizer is built.
        batches: the global batches.
        scope: the scope of the model's strategy.
        of_layers: True to record the outputs of layers.
    """

    def __init__(
        self,
        model: Any,
        batches: Sequence[Batch],
        scope: Callable[[], Any] = contextlib.nullcontext,
        *,
        of_layers: bool = True,
    ) -> None:
        self.model = model
        self._batches = batches
        self._scope = scope
        self._of_layers = of_layers
        #: The names of layers in the order of their calls; empty before the first stage.
        self.called: Sequence[str] = ()
        self._optimizers = optimizers_of(model)

    def state(self) -> State:
        """Reads the variables. Where other processes own some, call it in a function that rank 0 runs for all."""
        named = {name: np.array(value) for name, value in named_state(self.model).items()}
        seeds = {name: [np.array(each) for each in states] for name, states in self._seeds().items()}
        return State(named, seeds)

    def set_state(self, state: State) -> None:
        """Sets the variables. Where other processes own some, call it in a function that rank 0 runs for all."""
        set_named_state(self.model, state.named)
        for name, own in self._seeds().items():
            # A split layer may have one for each shard.
            for variable, value in zip(own, state.seeds.get(name, ()), strict=False):
                variable.assign(value)

    def _seeds(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        counts: Counter[str] = Counter()
        for layer in self.model._flatten_layers():
            # Layers of different blocks may have one name.
            counts[layer.name] += 1
            found[f"{layer.name}#{counts[layer.name]}"] = [each.state for each in layer._seed_generators]
        return found

    def stages(self, reset: Callable[[], None]) -> Generator[Stage]:
        """Yields after the first forward pass, after the first backward pass, and after each step.

        The values of variables are to be read before the next stage.

        Args:
            reset: sets the variables to their first values.
        """
        first = self._batches[0]
        with self._changed():
            reset()
            parts = int(getattr(self.model, "num_microbatches", 1))
            outputs = {}
            if takes_inputs(self.model, first):
                outputs = layer_outputs(self.model, first.x, num_parts=parts, of_layers=self._of_layers)
            self.called = list(
                dict.fromkeys(name.partition("#")[0] for name in outputs if not name.startswith(OUTPUTS))
            )
            yield Stage(0, {(OUTPUT, name): value for name, value in outputs.items()})
            reset()
            keepers = {name: functools.partial(_gradient_keeper, each) for name, each in self._optimizers.items()}
            with self._swapped(keepers):
                yield Stage(0, self._train(first), has_gradients=True)
            reset()
            # An optimizer that no step has built stays so.
            unbuilt = {name: each for name, each in self._optimizers.items() if not each.built}
            with self._swapped({name: functools.partial(_copied, each) for name, each in unbuilt.items()}):
                for step, batch in enumerate(self._batches, 1):
                    yield Stage(step, self._train(batch), has_state=True)

    def _train(self, batch: Batch) -> dict[tuple[str, str], Any]:
        logs = self.model.fit(**batch.data, verbose=0).history
        return {(LOG, name): np.asarray(values[-1]) for name, values in logs.items()}

    @contextlib.contextmanager
    def _changed(self) -> Iterator[None]:
        """Context manager: functions are traced for the block only, each for one step, and not compiled by XLA."""
        model = self.model
        before = model.jit_compile, model.steps_per_execution
        metrics = [(part, np.array(part)) for part in _metric_parts(model)]
        history = getattr(model, "history", None)
        self._forget_functions()
        model.jit_compile, model.steps_per_execution = False, 1
        try:
            yield
        finally:
            model.jit_compile, model.steps_per_execution = before
            model.history = history
            self._forget_functions()
            for part, value in metrics:
                part.assign(value)

    def _forget_functions(self) -> None:
        self.model.train_function = self.model.predict_function = None
        self.model.reset_metrics()

    @contextlib.contextmanager
    def _swapped(self, optimizers: Mapping[str, Callable[[], Any]]) -> Iterator[None]:
        """Context manager: replaces the optimizers of these attributes by new ones."""
        for name, make in optimizers.items():
            with self._scope():
                setattr(self.model, name, make())
        try:
            yield
        finally:
            for name in optimizers:
                setattr(self.model, name, self._optimizers[name])
            self._forget_functions()

    def record(self, stage: Stage) -> Recorded:
        """Reads what a stage computed. Where other processes own variables, rank 0 calls it for all."""
        found = {
            Entry(kind, name, name.partition("#")[0] if kind == OUTPUT else ""): value
            for (kind, name), value in stage.values.items()
        }
        entries = self._gradients() if stage.has_gradients else self.state_entries() if stage.has_state else []
        values = named_state(self.model) if entries else {}
        return Recorded(stage.step, {**found, **{entry: np.asarray(values[entry.key]) for entry in entries}})

    def _gradients(self) -> list[Entry]:
        """Returns the first moments of the optimizers that keep gradients."""
        found: list[Entry] = []
        owners = self._owners()
        for attribute in self._optimizers:
            # Variables that are overwritten by their gradients, as float8's scales, have no slots.
            with_slots = [each for each in weights_of(getattr(self.model, attribute)) if not is_overwritten(each)]
            for position, weight in zip(_positions_of_moments(len(with_slots)), with_slots, strict=True):
                key = f"{attribute}/vars/{position}"
                found.append(Entry(GRADIENT, weight.path, owners.get(weight.path, ""), key))
        return found

    def state_entries(self) -> list[Entry]:
        """Returns the variables of the model and its optimizers."""
        found: list[Entry] = []
        owners, weights = self._owners(), {each.path for each in joined(self.model.trainable_variables)}
        for name, value in named_state(self.model).items():
            attribute, _, position = name.partition("/vars/")
            owner = name.partition("/")[0]
            path = getattr(value, "path", name)
            if owner not in self._optimizers:
                found.append(Entry(WEIGHT if path in weights else STATE, path, owners.get(path, ""), name))
            else:
                is_own = attribute in self._optimizers and path == name
                path = getattr(self.model, owner).variables[int(position)].path if is_own else path
                found.append(Entry(SLOT, path, "", name))
        return found

    def sources_of_loss(self) -> list[str]:
        """Returns the names of what computes the loss of a plain model that has been trained."""
        model = self.model
        methods = ((TensorFlowTrainer, "train_step"), (Trainer, "compute_loss"))
        found = [f"{type(model).__name__}.{name}" for base, name in methods if overrides(model, base, name)]
        if model.loss is not None:
            losses = ", ".join(map(_name_of_loss, keras.tree.flatten(model.loss)))
            found.append(f"compile(loss={losses})")
        return found + [name_of(each, model) for each in model._flatten_layers(include_self=False) if each._losses]

    def _owners(self) -> dict[str, str]:
        """Returns the names of the layers that own variables, by the variables' paths."""
        return {
            variable.path: name_of(layer, self.model)
            for layer in self.model._flatten_layers()
            for variable in joined([*layer._trainable_variables, *layer._non_trainable_variables])
        }


def _gradient_keeper(optimizer: Any) -> Any:
    """Returns an optimizer of the same weights that changes none, and whose first moments are gradients."""
    keeper = keras.optimizers.Adam(learning_rate=0.0, beta_1=0.0)
    if optimizer.built:
        keeper.build(_built_with(optimizer))
    return keeper


def _copied(optimizer: Any) -> Any:
    return optimizer.__class__.from_config(optimizer.get_config())


@functools.cache
def _positions_of_moments(count: int) -> tuple[int, ...]:
    """Returns the positions of Adam's first moments among its variables, for a number of weights."""
    return without_strategy(lambda: _positions(keras.optimizers.Adam(), count))


def _positions(adam: Any, count: int) -> tuple[int, ...]:
    adam.build([keras.Variable(0.0) for _ in range(count)])
    positions = {id(variable): i for i, variable in enumerate(adam.variables)}
    return tuple(positions[id(moment)] for moment in adam._momentums)


def _metric_parts(model: Any) -> list[Any]:
    """Returns the variables of a model's metrics; on a mesh, the part of each replica of this process."""
    values = [variable._value for metric in model.metrics for variable in metric.variables]
    return [
        part
        for value in values
        for part in (value.values if isinstance(value, tf.distribute.DistributedValues) else (value,))
    ]


def _name_of_loss(loss: Any) -> str:
    return loss if isinstance(loss, str) else str(getattr(loss, "__name__", type(loss).__name__))
