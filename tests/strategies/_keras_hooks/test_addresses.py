"""Names that Keras has moved are found at their new addresses; other moves are refused in one message."""

from __future__ import annotations

import re
import runpy
import sys

import keras
import pytest

from strategies import versions
from strategies._keras_hooks import addresses, keras_versions, wrapping

OLD = "keras.src.backend.tensorflow.trainer.TensorFlowTrainer.fit"
NEW = "keras.src.backend.tensorflow.trainer.Trainer.fit"


@pytest.mark.parametrize(("release", "expected"), [("3.15.1", OLD), ("3.16.0.dev2026", NEW), ("3.17", NEW)])
def test_where_a_release_has_something(release: str, expected: str) -> None:
    assert addresses.located(OLD, release) == expected
    assert expected in addresses.functions("overridden", release)
    assert addresses.located("keras.src.trainers", release) == "keras.src.trainers"


def test_signatures_of_a_release() -> None:
    name = "keras.src.saving.saving_lib.save_model"
    assert "weights_format" in addresses.functions("wrapped", "3.15")[name]
    assert "weights_format" not in addresses.functions("wrapped", "3.16")[name]
    added = "keras.src.optimizers.multi_optimizer.MultiOptimizer.apply"
    assert added not in addresses.functions("overridden", "3.14")
    assert added in addresses.functions("overridden", "3.15")


def test_nothing_has_changed_in_the_installed_release() -> None:
    assert addresses.changes() == ([], [])


def test_a_further_place_of_a_wrapped_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras could call it there, past what is wrapped around it."""
    monkeypatch.setattr(addresses.saving_lib, "made_up", addresses.tf_random.categorical, raising=False)
    gone, [line] = addresses.changes()
    assert not gone
    assert line.startswith("keras.src.saving.saving_lib.made_up is keras.src.backend.tensorflow.random.categorical")


def test_what_moved_and_changed_in_an_unknown_release_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Keras in which a module and four functions are elsewhere, and a method has another parameter."""
    monkeypatch.setattr(versions, "TESTED", {**versions.TESTED, "keras": ("3.0", "3.1")})
    module = addresses.legacy_h5_format.__name__
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr(sys.modules[module.rpartition(".")[0]], module.rpartition(".")[2])
    gone = [
        (addresses.tf_random, "dropout"),
        (keras_versions.REMAT_MODULE, "remat"),
        (addresses.saving_lib, "is_memory_sufficient"),
        (addresses.TensorFlowTrainer, "make_predict_function"),
    ]
    for owner, name in gone:
        monkeypatch.delattr(owner, name)

    monkeypatch.setattr(addresses.BaseOptimizer, "_clip_gradients", lambda self, grads, norm: grads)
    with pytest.raises(RuntimeError) as error:
        runpy.run_path(addresses.__file__)
    message = str(error.value)
    assert message.startswith(f"keras-strategies does not work with Keras {keras.__version__}, which has changed")
    expected = [module, *(wrapping.full_name(owner, name) for owner, name in gone)]
    assert re.findall(r"(\S+) does not exist", message) == sorted(expected)
    clip = f"{addresses.BaseOptimizer.__module__}.BaseOptimizer._clip_gradients"
    assert f"{clip} was (self, grads), is (self, grads, norm)" in message
    assert message.endswith("Install Keras >= 3.0, < 3.1, or a newer keras-strategies.")
