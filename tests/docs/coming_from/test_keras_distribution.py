"""docs/coming_from/keras_distribution.md: keras.distribution on JAX, on TensorFlow, and a mesh of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.coming_from.programs import (
    LIMIT_SECONDS,
    OTHER_FRAMEWORK,
    PROGRAMS,
    changed,
    interpreter_with,
    on_one,
    output,
    same,
)
from tests.processes import python

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 30)

#: Makes four logical devices, as TensorFlow needs them in place of XLA's flag.
DEVICES = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
"""


def test_ours_prints_the_losses_of_one_device(tmp_path: Path) -> None:
    assert same(output(tmp_path, on_one("keras_distribution_after.py")))


def test_the_original_prints_the_losses_of_one_device(tmp_path: Path) -> None:
    interpreter = interpreter_with("jax", "keras")
    command = [interpreter, str(PROGRAMS / "keras_distribution_before.py")]
    assert same(output(tmp_path, command), tolerance=OTHER_FRAMEWORK)


@pytest.mark.parity_all
def test_data_parallel_on_jax(tmp_path: Path) -> None:
    interpreter = interpreter_with("jax", "keras")
    layouts = 'keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")'
    changes = {layouts: "keras.distribution.DataParallel()"}
    program = changed(tmp_path, "keras_distribution_before.py", changes)
    assert same(output(tmp_path, [interpreter, program]), tolerance=OTHER_FRAMEWORK)


def test_with_tensorflow_the_original_splits_nothing(tmp_path: Path) -> None:
    devices = "print({weight.value.device[-5:] for weight in model.weights}, model.weights[0].value.shape)\n"
    changes = {
        '"jax"': '"tensorflow"',
        "import numpy as np\n": "import numpy as np\n" + DEVICES,
        "print(": devices + "print(",
    }
    printed = output(tmp_path, python(changed(tmp_path, "keras_distribution_before.py", changes)))
    # The page: all weights whole, on the first of four devices.
    assert "{'CPU:0'} (20, 32)" in printed
    assert "Warning" not in printed
