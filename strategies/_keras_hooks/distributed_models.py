"""Models of our strategies: Keras' trainer with our input, steps, losses and metrics.

A model that is made under one of our strategies gets a subclass of its class, see ``subclasses``:

    keras.Sequential         Sequential, DistributedModel, keras.Model, TensorFlowTrainer, ...
    a user's model           TheirModel, DistributedModel, keras.Model, TensorFlowTrainer, ...

Models of no strategy, or of another one, are Keras' own. ``model.__class__`` remains the class that the program chose:
files, configs and copies are those of plain Keras. What each method does is in the module that it calls.

A program's class may call ``keras.Model.train_step(self, data)`` in place of ``super().train_step(data)``, which skips
these methods. Gradients are then summed where the tape returns them, metrics one by one where they are read, and
losses are weighted one by one: the numbers are the same. ``trainer`` hooks the methods for which they would not be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from strategies._keras_hooks import compiled_steps, files, generation, losses, state_trees, train_steps, trainer
from strategies._keras_hooks.addresses import TensorFlowTrainer
from strategies._keras_hooks.subclasses import become, reduced, subclass
from strategies._keras_hooks.trainer_calls import traced_by_caller
from strategies._keras_hooks.wrapping import not_converted, wrap
from strategies.engine.engine import engine_of


def install() -> None:
    """Wraps the constructor of trainers."""
    wrap(TensorFlowTrainer, "__init__", _init, in_step=False)


def _init(original: Callable[..., None], model: Any) -> None:
    original(model)
    # Keras has no trainers that are not models.
    if engine_of(model.distribute_strategy) is not None and isinstance(model, keras.Model):
        outermost: list[type] = [_SavesPreset] if hasattr(model, "save_to_preset") else []
        outermost += [_Generates] if hasattr(model, "make_generate_function") else []
        become(model, subclass(type(model), DistributedModel, *outermost))


class _SavesPreset:
    """Methods that come before those of a model of KerasHub."""

    def save_to_preset(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves a preset, which lists the tasks whose ``backbone_cls`` is ``type(backbone)``: that of the program."""
        made = [(layer, type(layer)) for layer in self._flatten_layers() if isinstance(layer, DistributedModel)]
        for layer, _ in made:
            become(layer, layer.__class__)
        try:
            return self.save_to_preset(*args, **kwargs)
        finally:
            for layer, cls in made:
                become(layer, cls)


def _entry(name: str) -> Callable[..., Any]:
    """Returns a method that trains, evaluates or predicts, with the signature and the documentation of Keras' own."""

    @functools.wraps(getattr(keras.Model, name))
    def entry(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        return trainer.enter(getattr(super(DistributedModel, model), name), model, *args, **kwargs)

    return entry


class _Generates:
    """Methods that come before those of a model of KerasHub that generates."""

    def make_generate_function(self: Any) -> Callable[..., Any]:
        """Returns the function that generates a batch; processes of one replica compare their prompts first."""
        task: Any = super()
        return generation.agreed(task.make_generate_function(), self)


class DistributedModel(keras.Model):
    """Methods of ``keras.Model`` for a model of one of our strategies. They pass through outside of it."""

    fit = _entry("fit")
    evaluate = _entry("evaluate")
    predict = _entry("predict")
    train_on_batch = _entry("train_on_batch")
    test_on_batch = _entry("test_on_batch")
    predict_on_batch = _entry("predict_on_batch")

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        trainer.build_ahead(super()._maybe_symbolic_build, self, iterator, data_batch)

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return trainer.make_function(super()._make_function, self, step_function)

    def _autoconvert_optionals(self, step_func: Callable[[Any], Any]) -> Callable[[Any], Any]:
        # XLA compiles functions, each by itself.
        return super()._autoconvert_optionals(step_func if self.jit_compile else traced_by_caller(step_func))

    @not_converted
    def train_step(self, data: Any) -> Any:
        """Runs the training step of a replica."""
        return train_steps.run(super().train_step, self, data)

    @not_converted
    def test_step(self, data: Any) -> Any:
        """Runs the test step of a replica."""
        return compiled_steps.test_step(super().test_step, self, data)

    @not_converted
    def predict_step(self, data: Any) -> Any:
        """Runs the predict step of a replica."""
        return compiled_steps.predict_step(super().predict_step, self, data)

    # Keras asks the signature for `training`.
    @not_converted
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns the loss of a replica's rows."""
        return losses.compute_loss(super().compute_loss, self, x, y, y_pred, sample_weight, training)

    @not_converted
    def _aggregate_additional_loss(self, loss: Any) -> Any:
        return losses.add_loss(super()._aggregate_additional_loss, self, loss)

    @not_converted
    def get_metrics_result(self) -> Any:
        """Returns the values of all metrics over all replicas."""
        return trainer.read_over_replicas(self.metrics, super().get_metrics_result)

    @functools.wraps(keras.Model.export)
    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        return files.export(self, filepath, *args, **kwargs)

    def _create_nested_dict(self, variables: Sequence[Any], value_format: str) -> dict[str, Any]:
        return state_trees.create(super()._create_nested_dict, self, variables, value_format)

    def _assign_variable_values(self, variables: Sequence[Any], path_value_dict: Mapping[str, Any]) -> None:
        state_trees.assign(super()._assign_variable_values, self, variables, path_value_dict)

    def __reduce__(self) -> Any:
        """Returns what pickles hold: the class that the program chose, which can be imported, in place of this one."""
        return reduced(self, super().__reduce__())
