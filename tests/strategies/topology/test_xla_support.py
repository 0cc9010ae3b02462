"""XLA is not used for GPUs that need a later CUDA than TensorFlow is built with."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

import strategies
from strategies._keras_hooks import compiled_steps
from strategies.topology import xla_support
from strategies.topology.xla_support import reason_against_xla
from tests.would_be_gpus import would_be_gpus


@pytest.mark.parametrize(
    ("capability", "cuda", "compiles"),
    [
        ((9, 0), "12.5.1", True),
        ((7, 5), None, True),
        ((10, 0), "12.5.1", False),
        ((12, 0), "12.5.1", False),
        ((12, 0), "12.8", True),
        ((12, 1), "12.8.1", False),
        ((12, 1), "13.0", True),
        ((12, 0), None, False),
        ((13, 0), "13.0", False),
        (None, "12.5.1", True),
    ],
)
def test_it_depends_on_the_gpu_and_on_cuda(
    capability: tuple[int, int] | None, cuda: str | None, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    details = {"device_name": "Some GPU"} | ({"compute_capability": capability} if capability else {})
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [SimpleNamespace(name="/physical_device:GPU:0")])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    monkeypatch.setattr(xla_support, "tensorflow_cuda_version", lambda: cuda)
    reason = reason_against_xla()
    if compiles:
        assert reason is None
    else:
        assert reason is not None
        assert capability is not None
        assert f"compute capability {capability[0]}.{capability[1]} (Some GPU)" in reason
        assert f"built with CUDA {cuda}" in reason


def test_automatic_xla_stays_off_there_and_asking_for_it_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs no step: nothing here compiles for GPUs."""
    with would_be_gpus(), strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        assert model.jit_compile
        monkeypatch.setattr(xla_support, "reason_against_xla", lambda: "XLA cannot compile for it")
        with caplog.at_level(logging.INFO, compiled_steps.__name__):
            model.compile("sgd", "mse")
        assert not model.jit_compile
        assert "runs uncompiled, as XLA cannot compile for it." in caplog.text
        assert "may end the process" not in caplog.text
        model.compile("sgd", "mse", jit_compile=True)
        assert model.jit_compile
        assert "may end the process, as XLA cannot compile for it." in caplog.text
