"""Runs a page's `train` as a platform's worker does: python platform_worker.py PROGRAM ray|spark

The platform has set ``TF_CONFIG``. Ray runs the function in a thread of an actor's process, Spark in the main thread of
a process for each task. Without Ray, its ``report`` is replaced by one that prints.
"""

from __future__ import annotations

import runpy
import sys
import threading
import types
from typing import Any


def _replace_report() -> None:
    ray, train = types.ModuleType("ray"), types.ModuleType("ray.train")
    vars(train)["report"] = lambda metrics: print("reported", sorted(metrics))
    vars(ray)["train"] = train
    sys.modules.update({"ray": ray, "ray.train": train})


def main(program: str, platform: str) -> None:
    """Runs the program's function and prints what it returns."""
    returned: list[Any] = []
    if platform == "ray":
        _replace_report()
        train = runpy.run_path(program)["train"]
        thread = threading.Thread(target=lambda: returned.append(train({"rate": 0.05})))
        thread.start()
        thread.join()
    else:
        returned.append(runpy.run_path(program)["train"]())
    print(*returned)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
