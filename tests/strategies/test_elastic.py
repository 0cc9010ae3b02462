"""Elastic training: workers leave and join during one `fit`, and the numbers stay those of one device."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import keras_ext
import strategies
from strategies.testing import faults
from tests.processes import Programs, horovodrun
from tests.programs import elastic

TIMEOUT_SECONDS = 150


def on_one_device() -> tuple[list[np.ndarray], dict[int, list[float]], dict[str, list[float]]]:
    """Trains with plain Keras; returns weights, logs of steps and logs of epochs."""
    model, kept = elastic.make_model(), dict[int, list[float]]()
    commits = keras_ext.Commits(strategies.elastic.State(), elastic.STEPS_PER_EPOCH)
    elastic.fit(model, commits, [elastic.StepLogs(kept)])
    return model.get_weights(), kept, commits.history


class Hosts:
    """The script by which horovodrun discovers hosts; all of them are this machine."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hosts"
        self.script = folder / "hosts.sh"
        self.script.write_text(f"#!/bin/sh\ncat {self._file}\n")
        self.script.chmod(0o755)

    def set(self, **slots: int) -> None:
        part = self._file.with_suffix(".part")
        part.write_text("".join(f"{name}:{count}\n" for name, count in slots.items()))
        part.replace(self._file)


def wait_for(pattern: str, programs: Programs) -> re.Match[str]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := re.search(pattern, programs.output(100_000))):
        assert time.monotonic() < deadline, programs.output()
        assert programs.running(), programs.output()
        time.sleep(0.05)
    return found


@pytest.mark.parity_all
@pytest.mark.parametrize("lost", [0, 1])
def test_two_workers_then_one_then_three(lost: int, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    # One machine under two names: horovodrun never uses a host again on which a worker was lost.
    names = ("localhost", "127.0.0.1")
    hosts.set(**dict.fromkeys(names, 1))
    options = ["--min-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    launcher, *rest = horovodrun(2, [str(Path(elastic.__file__)), str(tmp_path)], in_one_family=True)
    hurt = faults.fail_at(kind="kill", rank=lost, step=11).recorded_in(tmp_path / "record")
    with Programs(tmp_path, [[launcher, *options, *rest]], [hurt.environment()]) as programs:
        survivor = wait_for(r"start 2 rank 0 of 1 on (\S+)", programs)[1]
        time.sleep(1.0)
        hosts.set(**{survivor: 3})
        wait_for("start 3 rank 0 of 3", programs)
        family = psutil.Process(programs.pids[0]).children(recursive=True)
        codes = programs.wait(TIMEOUT_SECONDS)
        output = programs.output(20_000)
        assert codes == [0], output
        assert len(re.findall(r"end rank \d of 3", output)) == 3, output
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, output
    assert list(hurt.happened()) == [0]
    weights, steps, history = on_one_device()
    with np.load(tmp_path / "weights.npz") as file:
        for found, expected in zip(file.values(), weights, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    logs = json.loads((tmp_path / "logs.json").read_text())
    _same(logs["history"], history)
    found = {int(step): values for step, values in logs["steps"].items()}
    # The process that ends as rank 0 has run all steps, or joined later: from then on no step is missing.
    assert set(found) == set(range(min(found), elastic.EPOCHS * elastic.STEPS_PER_EPOCH))
    _same(found, {step: steps[step] for step in found})


def _same(found: dict[Any, list[float]], expected: dict[Any, list[float]]) -> None:
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-6, err_msg=str(name))


def test_without_horovod_it_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_ELASTIC", raising=False)
    calls = []

    @strategies.elastic.run
    def train(state: strategies.elastic.State, first: int, *, second: int) -> int:
        """Adds its arguments, as the program's function."""
        assert (state.value, state.num_starts) == (None, 1)
        state.commit({"step": 3})
        assert state.value == {"step": 3}
        calls.append(first)
        return first + second

    assert train(1, second=2) == 3
    assert train(5, second=2) == 7
    assert calls == [1, 5]
    assert train.__doc__ == "Adds its arguments, as the program's function."
