"""The models with which a model on a mesh is compared: a plain copy on one device of rank 0, or one on another mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import keras
import tensorflow as tf

from strategies._keras_hooks.compared_batches import Batch
from strategies._keras_hooks.compared_records import Recorded, State
from strategies._keras_hooks.compared_training import (
    ComparedTraining,
    num_stages,
    optimizers_of,
    takes_inputs,
    weights_of,
)
from strategies._keras_hooks.compared_values import differing_names
from strategies._keras_hooks.layer_outputs import UnequalLayers, as_in_inference
from strategies._keras_hooks.plain_copies import compile_alike, plain_copy, without_strategy
from strategies.collectives.descriptions import listed
from strategies.engine.engine import Engine, engine_of
from strategies.replica.whole_weights import joined
from strategies.saving.driving import drive
from strategies.saving.restoring import load_on_all, state_of, variables_of
from strategies.saving.together import texts_of_job
from strategies.sharding.variables import shards_of_each

_Result = TypeVar("_Result")
FindUnequal = Callable[[Any], UnequalLayers]

_GIVE = (
    "Give a function that makes and compiles the same model without a strategy, as in "
    "strategy.check(model, data, reference=make_model)."
)


class Reference(Protocol):
    """A model with which another one is compared. All processes call its methods."""

    @property
    def training(self) -> ComparedTraining | None:
        """The training of the model; None on ranks that do not have it."""

    def stages(self, state: State | None, find_unequal: FindUnequal) -> Generator[Recorded | None]:
        """Trains from a state that rank 0 has, and yields what it computes, on rank 0.

        Args:
            state: the state; None on other ranks.
            find_unequal: returns the layers of a model that compute as in inference.
        """


def check_comparable(strategy: Any, model: Any) -> None:
    """Refuses a model that a strategy cannot compare.

    Raises:
        ValueError: it is of another strategy, or not compiled, or has optimizers in a list or dict.
    """
    if model.distribute_strategy is not strategy:
        raise ValueError(
            "A strategy checks models that were made in its scope. Make the model inside `with strategy.scope():`. "
            f"Received: {model.name!r}, made under {type(model.distribute_strategy).__name__}."
        )
    if not model.compiled:
        raise ValueError(
            f"A comparison with data trains the model: compile it first. Received: {model.name!r}, not compiled."
        )
    for name, value in vars(model).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        # TensorFlow's own lists of what an object tracks.
        is_tracking = name.startswith("_self_")
        if not is_tracking and any(isinstance(each, keras.Optimizer) for each in inside):
            raise ValueError(
                "A comparison replaces and restores a model's optimizers. Give each an attribute of its own. Received: "
                f"{name!r}, a {type(value).__name__} of optimizers."
            )


def other_mesh(strategy: Any, against: Any) -> Any:
    """Returns the strategy of another mesh over the same devices.

    Args:
        strategy: the strategy of the model.
        against: a strategy, which is returned, or the axes of a mesh.
    """
    if isinstance(against, tf.distribute.Strategy):
        return against
    devices = [list(strategy.mesh.devices)] if strategy.world_size == 1 else []
    return type(strategy)(*devices, mesh=against)


def on_rank_0(model: Any, function: Callable[[], _Result]) -> _Result | None:
    """Runs a function on rank 0, which may read the variables of a model; an error is one of all ranks.

    Args:
        model: the model on a mesh; all processes call this.
        function: the function.

    Returns:
        The function's result; None on other ranks.
    """
    text, caught, result = "", None, None
    try:
        result = drive(_engine(model), _variables_of(model), function)
    except Exception as error:
        text, caught = f"{type(error).__name__}: {error}", error
    texts = [each for each in texts_of_job(model, text) if each]
    if caught is not None:
        raise caught
    if texts:
        raise ValueError(f"Rank 0 could not compare the model. {texts[0]}")
    return result


def restore(training: ComparedTraining, state: State | None) -> None:
    """Sets a model on a mesh to a state that rank 0 has; all processes call this."""

    def load() -> str:
        if state is not None:
            training.set_state(state)
        return ""

    state_of(training.model)
    load_on_all(training.model.distribute_strategy, load, _variables_of(training.model))


def _variables_of(model: Any) -> list[Any]:
    """Returns the variables of a model and of all its optimizers; sharded weights are replaced by their shards."""
    others = [each for each in optimizers_of(model).values() if each is not getattr(model, "optimizer", None)]
    return [*variables_of(model), *shards_of_each([variable for each in others for variable in each.variables])]


class PlainReference:
    """A plain model on one device of rank 0.

    Args:
        model: the model on the mesh.
        first: its state, on rank 0.
        batches: the batches.
        make: the program's function that makes the plain model; None for a copy by the model's file.

    Raises:
        ValueError: there is no such copy, or it is another model; on all ranks.
    """

    def __init__(
        self,
        model: Any,
        first: State | None,
        batches: Sequence[Batch],
        make: Callable[[], Any] | None,
    ) -> None:
        self._mesh_model, self._num_stages = model, num_stages(batches)
        self.training = on_rank_0(model, lambda: _plain_training(model, first, batches, make))

    def stages(self, state: State | None, find_unequal: FindUnequal) -> Generator[Recorded | None]:
        """Trains from a state, and yields what the plain model computes."""
        training = self.training
        stages = None
        if training is not None and state is not None:
            stages = training.stages(functools.partial(training.set_state, state))
        unequal = UnequalLayers((), ()) if training is None else find_unequal(training.model)

        def record() -> Recorded | None:
            if training is None or stages is None:
                return None
            with as_in_inference(unequal):
                return without_strategy(lambda: training.record(next(stages)))

        for _ in range(self._num_stages):
            yield on_rank_0(self._mesh_model, record)


def _plain_training(
    model: Any, first: State | None, batches: Sequence[Batch], make: Callable[[], Any] | None
) -> ComparedTraining:
    left_out = [layer for layer in model._flatten_layers() if getattr(layer, "left_out_of_files", ())]
    if left_out and make is None:
        arguments = listed(sorted({each for layer in left_out for each in layer.left_out_of_files}))
        names = listed([repr(layer.name) for layer in left_out], at_most=4)
        raise ValueError(f"In a file {names} has no {arguments}, so that a copy trains without. {_GIVE}")
    try:
        plain = _copy(model) if make is None else _made(make, batches[0])
    except Exception as error:
        raise ValueError(f"The model has no plain copy. {_GIVE} {type(error).__name__}: {error}") from error
    if not plain.compiled:
        raise ValueError(f"The plain model {plain.name!r} is not compiled. {_GIVE}")
    _build_optimizers(model, plain)
    training = ComparedTraining(plain, batches)
    differing = differing_names(first, training)
    if differing and make is None:
        raise ValueError(
            "The model's file gives another model, as that of a model with LoRA adapters, which has merged them. "
            f"{_GIVE} Received: {differing}."
        )
    if differing:
        raise ValueError(f"The plain model has other variables than the mesh's. Received: {differing}.")
    return training


def _build_optimizers(model: Any, plain: Any) -> None:
    """Builds the optimizers of the plain model that are built on the mesh, with the same weights."""
    positions = {id(weight): i for i, weight in enumerate(joined(model.trainable_variables))}
    for name, optimizer in optimizers_of(model).items():
        other = getattr(plain, name, None)
        if optimizer.built and other is not None and not other.built:
            found = [positions[id(weight)] for weight in weights_of(optimizer) if id(weight) in positions]
            weights = plain.trainable_variables
            other.build([weights[i] for i in found if i < len(weights)])


def _copy(model: Any) -> Any:
    plain = plain_copy(model)
    without_strategy(lambda: compile_alike(plain, model))
    return plain


def _made(make: Callable[[], Any], batch: Batch) -> Any:
    """Makes the program's plain model, and calls it, which builds what `build` of a subclass has not built."""
    plain = without_strategy(make)
    without_strategy(lambda: takes_inputs(plain, batch))
    return plain


class MeshReference:
    """The same model on another mesh, of all processes.

    Args:
        strategy: the strategy of the other mesh.
        first: the state of the model, on rank 0.
        batches: the batches.
        make: the program's function that makes, splits and compiles the model, called in the strategy's scope.

    Raises:
        ValueError: it is another model; on all ranks.
    """

    def __init__(
        self,
        strategy: Any,
        first: State | None,
        batches: Sequence[Batch],
        make: Callable[[], Any],
    ) -> None:
        with strategy.scope():
            model = make()
            takes_inputs(model, batches[0])
        state_of(model)
        self.training = ComparedTraining(model, batches, strategy.scope, of_layers=records_layers(model))
        differing = on_rank_0(model, functools.partial(differing_names, first, self.training))
        [text, *_] = texts_of_job(model, differing or "")
        if text:
            raise ValueError(f"The model on the other mesh has other variables. Received: {text}.")

    def stages(self, state: State | None, find_unequal: FindUnequal) -> Generator[Recorded | None]:
        """Trains from a state, and yields what the other mesh computes."""
        training = self.training
        with as_in_inference(find_unequal(training.model)):
            for stage in training.stages(lambda: restore(training, state)):
                yield on_rank_0(training.model, functools.partial(training.record, stage))


def records_layers(model: Any) -> bool:
    """Returns False where processes own different stages, and so compute different layers."""
    return not _engine(model).parts.crosses("pipe")


def _engine(model: Any) -> Engine:
    engine = engine_of(model.distribute_strategy)
    if engine is None:
        raise ValueError(f"{model.name!r} was made under no strategy of this package.")
    return engine
