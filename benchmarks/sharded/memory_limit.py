"""Trains a model that needs 1.8 times the memory that a process may have: `python benchmarks/sharded/memory_limit.py`.

One process with plain Keras and no limit gives the reference losses; one with the limit cannot train; two with the
limit and ``shard="weights"`` each hold half of the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import resource
import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import clusters, environment, memory, program
from harness.workers import Report, WorkerError, Workers

#: Bytes of a float32 weight, its gradient, and Adam's two slots.
_BYTES_PER_PARAMETER = 16
#: Large blocks are returned to the system when freed; small ones stay in few heaps.
_ALLOCATORS = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
    "MALLOC_ARENA_MAX": "2",
    # Fewer, larger pages, where the system has them: each new block needs new pages.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_NUM_ROWS = 8

FLAGS = flags.FLAGS
flags.DEFINE_integer("layers", 32, "Dense layers.", lower_bound=2)
flags.DEFINE_integer("width", 4096, "Units of each of them.", lower_bound=1)
flags.DEFINE_integer("steps", 2, "Steps of training.", lower_bound=1)
flags.DEFINE_float("times", 1.8, "How many times a process' limit the model needs.", lower_bound=0.0)
program.define_timeout()


@dataclasses.dataclass(frozen=True)
class Model:
    """A stack of dense layers without biases.

    Attributes:
        layers: number of layers.
        width: units of each layer.
        steps: number of training steps.
    """

    layers: int
    width: int
    steps: int

    @property
    def needs(self) -> int:
        """The number of bytes of its weights, gradients and slots."""
        return _BYTES_PER_PARAMETER * self.layers * self.width**2


def train(model: Model, cluster: str, limit: int | None, report: Report) -> None:
    """Reports the loss of each step, then the peak of memory, in bytes above an idle TensorFlow.

    Args:
        model: the model to train.
        cluster: "none" for plain Keras, or "tensorflow".
        limit: number of bytes above an idle TensorFlow that it may allocate; None for no limit.
        report: takes a measurement.
    """
    import keras
    import numpy as np

    import strategies

    is_alone = cluster == "none"
    strategy = None if is_alone else strategies.MultiWorkerMirroredStrategy(shard="weights")
    x = np.random.default_rng(0).standard_normal((_NUM_ROWS * model.steps, model.width), "float32")
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        warm = keras.Sequential([keras.layers.Dense(2)])
        warm.compile("adam", "mse")
    warm.fit(x[:, :4], x[:, :2], batch_size=_NUM_ROWS, verbose=0)
    status = Path("/proc/self/status").read_text()
    data, resident = (
        1024 * int(re.findall(rf"^{name}:\s*(\d+)", status, re.MULTILINE)[0]) for name in ("VmData", "VmRSS")
    )
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (data + limit, data + limit))
    memory.forget_highest()
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        keras.utils.set_random_seed(0)
        dense = [keras.layers.Dense(model.width, "tanh", use_bias=False) for _ in range(model.layers)]
        made = keras.Sequential([keras.Input((model.width,)), *dense])
        made.compile(keras.optimizers.Adam(1e-4), "mse")
    report(0.0)
    for step in range(model.steps):
        rows = x[_NUM_ROWS * step : _NUM_ROWS * (step + 1)]
        report(made.fit(rows, rows, batch_size=_NUM_ROWS, shuffle=False, verbose=0).history["loss"][0])
    report(float(memory.highest() - resident))


def measured(model: Model, cluster: str, limit: int | None, timeout_seconds: float) -> tuple[list[float], float] | None:
    """Returns the losses and the peak of memory of a process; None if it cannot train."""
    made = clusters.contender(
        cluster,
        functools.partial(train, model, cluster, limit),
        cluster,
        1 if cluster == "none" else 2,
        clusters.independent,
    )
    environments = tuple({**each, **_ALLOCATORS} for each in made.environments)
    workers = Workers(dataclasses.replace(made, environments=environments), timeout_seconds)
    try:
        losses = [workers.measure()[0] for _ in range(model.steps)]
        return losses, max(workers.measure())
    except WorkerError as error:
        print(f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}", flush=True)
        return None
    finally:
        workers.stop()


def main() -> None:
    """Trains the model three times, and prints a table."""
    print(environment.describe(("tensorflow", "keras", "numpy")), flush=True)
    model = Model(FLAGS.layers, FLAGS.width, FLAGS.steps)
    limit = int(model.needs / FLAGS.times)
    print(
        f"\n{model.needs / 1e6:,.0f} MB of weights, gradients and slots; a limit of {limit / 1e6:,.0f} MB\n", flush=True
    )
    rows = {}
    for name, cluster, own in (
        ("plain Keras, no limit", "none", None),
        ("plain Keras", "none", limit),
        ('two processes, shard="weights"', "tensorflow", limit),
    ):
        rows[name] = measured(model, cluster, own, FLAGS.timeout_seconds)
    print("\n| | losses | peak MB |\n| --- | --- | --- |")
    for name, found in rows.items():
        text = (
            "cannot |" if found is None else f"{', '.join(f'{loss:.7f}' for loss in found[0])} | {found[1] / 1e6:,.0f}"
        )
        print(f"| {name} | {text} |")


if __name__ == "__main__":
    program.run(main)
