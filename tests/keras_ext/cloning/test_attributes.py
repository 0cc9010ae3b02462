"""A copy of each of Keras' layers keeps everything that can be set on its weights; attributes new to Keras fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import pytest

from keras_ext.cloning import Copies, copy_state, pairs, state
from strategies import layer_api
from strategies.replica.weight_identity import keys_of
from tests.keras_ext.cloning.copies import L, parallelized
from tests.keras_ext.cloning.test_layers import one_of_each

# Keras' own class among the bases, without TensorFlow's.
VARIABLE = next(each for each in keras.Variable.__mro__ if "overwrite_with_gradient" in vars(each))
SETTABLE = {name for name, each in vars(VARIABLE).items() if isinstance(each, property) and each.fset}
#: The constructor's arguments that a copy takes from its context, not from its weight.
OF_MAKING = {"initializer", "shape", "dtype", "name", "layout", "kwargs"}
#: The arguments that are given where the copy is made.
GIVEN = ("aggregation", "synchronization", "dtype", "name", "shape")


class Odd:
    """A regularizer or constraint; every instance is distinct."""

    def __call__(self, value: Any) -> Any:
        return value


def copied(model: Any) -> Any:
    made = Copies().get(model)
    copy_state(model, made)
    return made


def weights_of(model: Any) -> list[Any]:
    return layer_api.joined(model.weights, only_split=True)


def set_odd(model: Any) -> None:
    """Sets on each weight everything that can be set, so that no value is the one that its layer would give."""
    for i, weight in enumerate(weights_of(model)):
        weight.trainable = not weight.trainable
        weight.regularizer, weight.constraint = Odd(), Odd()
        weight.overwrite_with_gradient = bool(i % 2)
        weight._autocast = not weight._autocast
    for layer in model._flatten_layers(include_self=False):
        # Sets only the layer's flag: weights have their own flags.
        layer._trainable = not layer._trainable


def differences(model: Any, made: Any) -> list[str]:
    """Returns what differs on the weights of a copy, with their paths."""
    found = []
    ours, theirs = weights_of(made), weights_of(model)
    assert len(ours) == len(theirs)
    for one, other in zip(theirs, ours, strict=True):
        for name in (*SETTABLE, "_autocast", *GIVEN):
            if name == "synchronization" and isinstance(other, layer_api.SplitWeight):
                continue
            if getattr(one, name) != getattr(other, name):
                found.append(f"{name} of {one.path}")
        if not set(keys_of(one)) <= set(keys_of(other)):
            found.append(f"identity of {one.path}")
    return found


def test_every_attribute_of_a_variable_is_known() -> None:
    assert SETTABLE | {"_autocast"} == set(state.ATTRIBUTES)
    arguments = set(inspect.signature(VARIABLE.__init__).parameters) - {"self"} - OF_MAKING
    assert arguments <= {each.lstrip("_") for each in state.ATTRIBUTES} | set(GIVEN)


@pytest.mark.parametrize("copy", [copied, parallelized], ids=["Copies", "parallelize"])
def test_each_of_keras_layers(copy: Callable[[Any], Any]) -> None:
    model, _, seen = one_of_each(0.0)
    assert len(seen) > 100
    set_odd(model)
    made = copy(model)
    assert not differences(model, made)
    for one, other in pairs(model, made):
        assert one is model or one.trainable == other.trainable, one.name


@pytest.mark.parametrize("forgotten", state.ATTRIBUTES)
def test_a_forgotten_attribute_is_found(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), L.BatchNormalization()])
    set_odd(model)
    monkeypatch.setattr(state, "ATTRIBUTES", tuple({*state.ATTRIBUTES} - {forgotten}))
    for made in (copied(model), parallelized(model)):
        assert any(each.startswith(f"{forgotten} of ") for each in differences(model, made))
