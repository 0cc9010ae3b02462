"""One of several processes that run the parity cases together: writes the outcome of each to a file.

Arguments: the strategy's name, a folder, and the names of the cases to run (all if none).
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import tensorflow as tf

import strategies


def main(kind: str, folder: Path, names: list[str]) -> None:
    num_devices = int(os.environ.get("PARITY_LOCAL_DEVICES", "1"))
    if num_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    arguments = json.loads(os.environ.get("PARITY_ARGUMENTS", "{}"))
    strategy = getattr(strategies, kind)(**arguments)
    rank = strategy.rank

    from tests.graphs import collect_seldom
    from tests.strategies.parity.cases import ALL
    from tests.strategies.parity.cases_sharded import OWN, PARTS
    from tests.strategies.parity.harness import execute

    collect_seldom()
    # As in pytest, where the plain model runs: with a metric of one class Keras leaves an array, which NumPy before 2.4
    # converts to a number with a warning.
    warnings.filterwarnings("error", message="Conversion of an array with ndim > 0", category=DeprecationWarning)
    cases = {**ALL, **OWN, **PARTS}
    for name in names or list(ALL):
        try:
            result = execute(cases[name], strategy)
        except Exception:
            # The other processes wait in a collective for this one: no later case can run.
            (folder / f"error-{rank}").write_text(f"{name}\n{traceback.format_exc()}")
            raise
        path = folder / f"{list(cases).index(name)}-{rank}.pickle"
        path.with_suffix(".unfinished").write_bytes(pickle.dumps(result))
        path.with_suffix(".unfinished").rename(path)
        print("done", name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
