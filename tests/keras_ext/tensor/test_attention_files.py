"""Attention: in files and configs, split heads are those of the plain layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.keras_ext.tensor.attention_models import (
    begun,
    grouped,
    multi,
    sequences,
)
from tests.releases import known


class TestFiles:
    @pytest.mark.parametrize("make", [multi, grouped])
    def test_opens_in_plain_keras(self, make: Any, tmp_path: Path) -> None:
        model = begun(make, True, {"tensor": 2}, dropout=0.1, **known(use_gate=True))
        model.save(tmp_path / "model.keras")
        opened = keras.models.load_model(tmp_path / "model.keras")
        assert type(opened.layers[1]) is type(make(False))
        np.testing.assert_allclose(opened.predict(sequences(), verbose=0), model(sequences()), atol=1e-6)

    def test_reads_weights_of_the_plain_layer(self, tmp_path: Path) -> None:
        plain, split = begun(multi, False, {"data": 1}), begun(multi, True, {"tensor": 4}, bias_initializer="ones")
        plain.save_weights(tmp_path / "w.weights.h5")
        split.load_weights(tmp_path / "w.weights.h5")
        np.testing.assert_allclose(split(sequences()), plain(sequences()), atol=1e-6)

    @pytest.mark.parametrize("make", [multi, grouped])
    def test_configs_go_round(self, make: Any) -> None:
        arguments = {"dropout": 0.2, "use_bias": False, "seed": 4, "name": "a name"} | known(sliding_window=3)
        layer = make(True, sequence_parallel=True, **arguments)
        config = layer.get_config()
        assert type(layer).from_config(config).get_config() == config
        plain = layer.plain_config(config)
        assert plain | {"sequence_parallel": True} == config
        assert type(make(False)).from_config(plain).get_config() == plain
