"""A worker of `deploy/ray/mnist_ray.py`, without Ray: `python tests/deploy/without_ray.py EPOCHS RUN_DIR`."""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[2] / "deploy" / "ray" / "mnist_ray.py"


def main() -> None:
    """Trains; rank 0 prints the last logs. TF_CONFIG has the addresses, as Ray writes them."""
    names = ("ray", "ray.train", "ray.train.tensorflow")
    ray, train, tensorflow = modules = [types.ModuleType(name) for name in names]
    sys.modules.update(zip(names, modules, strict=True))
    vars(ray)["train"], vars(train)["tensorflow"] = train, tensorflow
    vars(train)["report"] = lambda logs: None
    vars(tensorflow)["TensorflowTrainer"] = None
    config: dict[str, Any] = {"epochs": int(sys.argv[1]), "run_dir": sys.argv[2], "batch_size": 64, "data_dir": None}
    runpy.run_path(str(PROGRAM))["train_on_worker"](config)


if __name__ == "__main__":
    main()
