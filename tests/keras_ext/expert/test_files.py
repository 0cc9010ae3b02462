"""A MixtureOfExperts in files: saved as a model of Keras' own layers, which becomes the sparse layer again."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.processes import python

FORMS: dict[str, dict[str, Any]] = {
    "gated": {"load_balancing_loss": 0.02, "kernel_regularizer": keras.regularizers.L2(1e-3)},
    "plain": {"gated": False, "activation": "relu", "use_bias": True, "bias_initializer": "normal", "top_k": 1},
    "sigmoid": {
        "router_activation": "sigmoid",
        "router_bias": 0.01,
        "normalize_top_k": False,
        "shared_hidden_dim": 7,
        "capacity_factor": 1.5,
    },
    "half": {"dtype": "mixed_float16", "shared_hidden_dim": 5, "use_bias": True, "z_loss": 1e-3, "gated": False},
}


def trained(**arguments: Any) -> tuple[Any, Any]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((5, 6)),
            keras.layers.Dense(6, "tanh"),
            keras_ext.MixtureOfExperts(4, 10, **arguments),
            keras.layers.Dense(2, dtype="float32"),
        ]
    )
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(8, 5, 6)).astype("float32")
    model.fit(x, x[..., :2], verbose=0)
    return model, x


@pytest.mark.parametrize(
    "form", ["sigmoid", "half", *(pytest.param(name, marks=pytest.mark.parity_all) for name in ("gated", "plain"))]
)
def test_is_a_plain_model_that_becomes_sparse_again(form: str, tmp_path: pathlib.Path) -> None:
    model, x = trained(**FORMS[form])
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    expected = model.predict(x, verbose=0)
    limit = 2e-3 if form == "half" else 1e-6
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert {type(layer).__module__.partition(".")[0] for layer in plain._flatten_layers()} == {"keras"}
    np.testing.assert_allclose(plain.predict(x, verbose=0), expected, atol=limit)

    sparse = keras_ext.replace_experts(plain)
    [mixture] = [layer for layer in sparse.layers if isinstance(layer, keras_ext.MixtureOfExperts)]
    config, own = mixture.get_config(), model.layers[1].get_config()
    assert {**config, "model": 0} == {**own, "model": 0}
    # Trained further, it gives what it would give without the file.
    for each in (model, sparse):
        each.fit(x, x[..., :2], verbose=0)
    for a, b in zip(model.get_weights(), sparse.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_array_equal(model.optimizer.iterations, sparse.optimizer.iterations)

    # Weights alone, in both directions.
    plain.load_weights(tmp_path / "model.weights.h5")
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


def test_opens_where_this_package_cannot_be_imported(tmp_path: pathlib.Path) -> None:
    model, x = trained(**FORMS["sigmoid"])
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "values.npz", x=x, y=model.predict(x, verbose=0))
    program = (
        "import sys, numpy as np; sys.modules['strategies'] = sys.modules['keras_ext'] = None\n"
        "import keras\n"
        "model, values = keras.models.load_model('model.keras'), np.load('values.npz')\n"
        "np.testing.assert_allclose(model.predict(values['x'], verbose=0), values['y'], atol=1e-6)\n"
        "model.fit(values['x'], values['y'], verbose=0)\n"
        "keras.models.clone_model(model).save('again.keras')\n"
    )
    ended = subprocess.run(python("-c", program), cwd=tmp_path, capture_output=True, check=False)
    assert not ended.returncode, ended.stderr.decode()
    keras_ext.replace_experts(keras.models.load_model(tmp_path / "again.keras"))


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"MixtralSparseMoeBlock.*Received: .*Dense"):
        keras_ext.replace_experts(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="no graph"):
        keras_ext.replace_experts(keras.layers.Dense(2))
