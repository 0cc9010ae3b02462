"""Eight logical CPU devices, made before TensorFlow starts: meshes of up to 2 x 2 x 2 fit in this one process."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

NUM_LOGICAL_DEVICES = 8

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_LOGICAL_DEVICES)],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parity-all", action="store_true", help="run all parity cases, in worlds of four replicas, too")
    parser.addoption("--parity-table", metavar="FILE", help="write what the parity tests measure to this page")
