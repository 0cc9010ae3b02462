"""The callback injects faults at the right step, moment and rank; programs are faulted through the environment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from strategies.testing import faults
from strategies.testing.faults import striking
from tests.clock import Clock
from tests.processes import ROOT

STEPS_PER_EPOCH = 4


class Steps(keras.callbacks.Callback):
    """Records the completed steps, as "epoch.batch"."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done.append(f"{self._epoch}.{batch}")


def train(hurt: faults.Faults | None, *others: Any, rank: int = 0, epochs: int = 2, **options: Any) -> list[str]:
    """Trains with the faults; returns the steps that completed before an error, and the error's name."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", **options)
    steps = Steps()
    x = np.ones((2 * STEPS_PER_EPOCH, 3), np.float32)
    injector = faults.Injector(hurt, rank)
    try:
        model.fit(x, x[:, :1], batch_size=2, epochs=epochs, verbose=0, callbacks=[injector, steps, *others])
    except (Exception, SystemExit) as error:
        steps.done.append(type(error).__name__)
    return steps.done


ALL = [f"{epoch}.{batch}" for epoch in (0, 1) for batch in range(STEPS_PER_EPOCH)]


@pytest.mark.parametrize(
    ("at", "step", "num_done"),
    [("step", 0, 0), ("step", 5, 5), ("start", 0, 0), ("epoch_end", 0, 4), ("epoch_end", 4, 8)],
)
def test_moments(at: faults.Moment, step: int, num_done: int) -> None:
    hurt = faults.fail_at(kind="raise", step=step, at=at)
    assert train(hurt) == [*ALL[:num_done], "RuntimeError"]


def test_other_ranks_and_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    hurt = faults.fail_at(kind="leave", step=2, rank=1)
    assert train(hurt) == ALL
    assert train(hurt, rank=1) == [*ALL[:2], "SystemExit"]
    assert train(None) == ALL
    monkeypatch.setenv("STRATEGIES_FAULTS", hurt.fail_at(kind="raise", step=3).to_json())
    assert train(None) == [*ALL[:3], "RuntimeError"]


def test_executions_of_several_steps() -> None:
    # Keras begins one batch for each execution: the third execution has the steps 6 to 8.
    hurt = faults.fail_at(kind="raise", step=7)
    x = np.ones((18, 1), np.float32)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=3)
    with pytest.raises(RuntimeError, match="raise of all ranks"):
        model.fit(x, x, batch_size=2, verbose=0, callbacks=[faults.Injector(hurt, 0)])
    assert int(model.optimizer.iterations) == 6


def test_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(striking, "time", clock)
    assert train(faults.fail_at(kind="slow", step=5, seconds=0.25)) == ALL
    assert clock.seconds == 3 * 0.25


def test_a_recorded_fault_happens_in_one_run_only(tmp_path: Path) -> None:
    hurt = faults.fail_at(kind="raise", step=3).recorded_in(tmp_path)
    assert train(hurt) == [*ALL[:3], "RuntimeError"]
    assert train(hurt) == ALL


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_full_disk_in_the_second_save(write: int, tmp_path: Path) -> None:
    hurt = faults.fail_at(kind="full_disk", step=3, at="save", write=write)
    checkpoints = keras_ext.Checkpoints(tmp_path / "checkpoints", STEPS_PER_EPOCH, every_steps=2)
    assert train(hurt, checkpoints) == [*ALL[:4], "OSError"]
    # The save before the fault exists, the failed one does not.
    names = [path.name for path in (tmp_path / "checkpoints").glob("step-*.json")]
    assert names == ["step-000000002.json"]


PROGRAM = f"""
import sys
import numpy as np, keras, keras_ext, strategies
from strategies.testing import faults
from strategies.testing.faults import striking
from tests.clock import Clock
keras.utils.set_random_seed(0)
with strategies.MirroredStrategy(["CPU:0"]).scope():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("adam", "mse")
checkpoints = keras_ext.Checkpoints(sys.argv[1] + "/checkpoints", {STEPS_PER_EPOCH})
at = checkpoints.restore(model)
x = np.ones(({2 * STEPS_PER_EPOCH}, 16), np.float32)
model.fit(x, x[:, :1], batch_size=2, initial_epoch=at.epoch, epochs=3, verbose=0,
          callbacks=[faults.Injector(), checkpoints])
print("result", checkpoints.history["loss"])
"""


def test_a_program_that_is_hurt_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts the program, as a launcher would, until all faults have happened."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    hurt = (
        faults.fail_at(kind="kill", at="tracing")
        .fail_at(kind="kill", step=3, at="save", byte=3000)
        .fail_at(kind="full_disk", step=7, at="save", byte=3000)
        .recorded_in(tmp_path / "record")
    )
    quiet = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    codes, output, errors = [], "", []
    for _ in range(4):
        ended = subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            env=quiet | hurt.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        codes.append(ended.returncode)
        output = ended.stdout
        errors.append(ended.stderr.strip())
    # A full disk is an OSError, and not the crash of HDF5 at the interpreter's exit.
    assert codes == [-signal.SIGKILL, -signal.SIGXFSZ, 1, 0], errors
    assert re.search(r"^OSError: .*File too large: '.*\.weights\.h5'$", errors[2].splitlines()[-1])
    assert sorted(hurt.happened()) == [0, 1, 2]
    calm: dict[str, Any] = {}
    monkeypatch.setattr(sys, "argv", ["program.py", str(tmp_path / "calm")])
    exec(PROGRAM, calm)
    assert output == f"result {calm['checkpoints'].history['loss']}\n"
