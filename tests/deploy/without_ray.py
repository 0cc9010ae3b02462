"""A worker of `deploy/ray/mnist_ray.py` that Ray has not started: `python tests/deploy/without_ray.py [its flags]`.

TF_CONFIG has the addresses of the workers, as Ray writes them.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

PROGRAM = Path(__file__).resolve().parents[2] / "deploy" / "ray" / "mnist_ray.py"


class Trainer:
    """Calls the function of a worker in this process.

    Args:
        function: the function.
        train_loop_config: its argument.
        options: where and how Ray would start workers.
    """

    def __init__(self, function: Callable[[Any], None], train_loop_config: Any, **options: Any) -> None:
        self._function, self._config = function, train_loop_config

    def fit(self) -> None:
        """Trains."""
        self._function(self._config)


if __name__ == "__main__":
    ray = mock.MagicMock()
    ray.train.tensorflow.TensorflowTrainer = Trainer
    sys.modules.update({"ray": ray, "ray.train": ray.train, "ray.train.tensorflow": ray.train.tensorflow})
    runpy.run_path(str(PROGRAM), run_name="__main__")
