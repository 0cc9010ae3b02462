"""The methods of Keras that classes of this package override, and the lines that report a changed signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
from keras.src.trainers.epoch_iterator import EpochIterator

from strategies._keras_hooks import distributed_callbacks, distributed_models, distributed_optimizers, inputs
from strategies._keras_hooks.addresses import Functional
from strategies._keras_hooks.signatures import differing
from strategies._keras_hooks.subclasses import subclass


def changes(known: Mapping[str, str], found: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Returns one line for each name that is gone, new or changed.

    Args:
        known: signatures, by names of Keras or TensorFlow.
        found: the signatures of the installed release.
        ours: the code that relies on them, by the same names.
    """
    lines = [f"{name} is gone" for name in known if name not in found]
    lines += [f"{name}{found[name]} is not listed" for name in found if name not in known]
    return lines + [f"{line}: see {ours[line.partition(' was ')[0]]}" for line in differing(known, found)]


def overriding_methods() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yields class, name and function of each method of the classes that distribute objects of Keras' classes."""
    plain = (keras.Model, keras.Optimizer, keras.callbacks.Callback, EpochIterator)
    for module in (distributed_models, distributed_optimizers, distributed_callbacks, inputs):
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, plain) and cls.__module__.startswith("strategies."):
                yield from ((cls, name, each) for name, each in vars(cls).items() if inspect.isfunction(each))


def overridden() -> dict[str, tuple[Callable[..., Any], str]]:
    """Returns by full name the methods of Keras that these classes override, each with the name of ours."""
    names = ("Adam", "Adagrad", "LossScaleOptimizer", "MultiOptimizer")
    made = [
        distributed_optimizers.distributed(getattr(keras.optimizers, name))
        for name in names
        if hasattr(keras.optimizers, name)
    ]
    made += [subclass(plain, ours) for plain, ours in distributed_callbacks._CLASSES.items()]
    made += [subclass(plain, distributed_models.DistributedModel) for plain in (Functional, keras.Sequential)]
    made.append(inputs.DistributedIterator)
    found = {}
    for order in [cls.__mro__ for cls in made]:
        for ours, name, _ in overriding_methods():
            for theirs in order[order.index(ours) + 1 :] if ours in order else ():
                if name in vars(theirs) and theirs.__module__.startswith("keras."):
                    full = f"{theirs.__module__}.{theirs.__qualname__}.{name}"
                    found[full] = (vars(theirs)[name], f"{ours.__module__}.{ours.__qualname__}.{name}")
    return found
