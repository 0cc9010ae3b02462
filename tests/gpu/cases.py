"""The cases of the suite: each trains in plain Keras on one device, and with our packages, and compares them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from tests.gpu import models
from tests.gpu.outcome import Outcome, judged
from tests.gpu.setting import Setting
from tests.gpu.training import Trained, compiled, difference, mirrored, peak_of_epoch, step_ms
from tests.gpu.xla import full_float32, require_xla

#: Tolerances: float32; with XLA, whose fusion rounds differently; half precision.
EXACT, WITH_XLA, HALF = 1e-5, 1e-4, 5e-2
_PROBLEMS: dict[str, Callable[..., models.Problem]] = {
    "resnet50": models.images,
    "gpt": partial(models.language, full=True),
}


@dataclass(frozen=True)
class Case:
    """A case: `run` in its own process, on `num_devices` logical devices of one physical device."""

    name: str
    run: Callable[[Setting], Outcome]
    num_devices: int = 1


def _one_device(name: str, problem: str, policy: str, setting: Setting) -> Outcome:
    """Our strategy on one device gives the numbers of plain Keras."""
    strategies.exact()
    keras.config.set_dtype_policy(policy)
    task = _PROBLEMS[problem](setting.small)
    plain, ours = compiled(task), compiled(task, mirrored(setting.devices))
    plain.epoch()
    peak = peak_of_epoch(ours, setting.devices[0])
    allowed = EXACT if policy == "float32" else HALF
    return judged(name, difference(ours, plain), allowed, peak_mb=peak)


def _speed(name: str, problem: str, policy: str, jit: bool, setting: Setting) -> Outcome:
    """Times a step of ours and of plain Keras, in turns; compares numbers, too, without `exact`.

    ResNet50's numbers are only reported: without `exact`, cuDNN adds in any order, and ten steps from random weights
    magnify that. On an H100, two runs of plain Keras differed by 0.64.
    """
    keras.config.set_dtype_policy(policy)
    task = _PROBLEMS[problem](setting.small, num_steps=4 if setting.small else 10)
    plain, ours = compiled(task, jit_compile=jit), compiled(task, mirrored(setting.devices), jit_compile=jit)
    plain.epoch()
    peak = peak_of_epoch(ours, setting.devices[0])
    if jit:
        require_xla(plain.model, ours.model)
    gap = difference(ours, plain)
    theirs, mine = step_ms(plain, ours)
    note = f"plain {theirs:.1f} ms, ours takes {mine / theirs:.2f} of it; TF32 as it comes"
    allowed = HALF if policy != "float32" or not setting.small else WITH_XLA
    repeatable = setting.small or problem != "resnet50"
    return judged(name, gap, allowed if repeatable else None, ms=mine, peak_mb=peak, note=note)


def _mesh(
    name: str,
    mesh: Mapping[str, int],
    problem: Callable[[bool], models.Problem],
    wrap: Callable[[Any], Any],
    setting: Setting,
    **options: Any,
) -> Outcome:
    """Our strategy on a mesh gives the numbers of plain Keras on one device, which always runs without XLA."""
    with_xla = options.get("jit_compile", False)
    full_float32() if with_xla else strategies.exact()
    task = problem(setting.small)
    plain = compiled(task, device=setting.devices[0])
    ours = compiled(task, mirrored(setting.devices, mesh), wrap, **options)
    plain.epoch()
    peak = peak_of_epoch(ours, setting.devices[0])
    if with_xla:
        require_xla(ours.model)
    allowed = WITH_XLA if with_xla else EXACT
    return judged(name, difference(ours, plain), allowed, ms=step_ms(ours)[0], peak_mb=peak)


def _normalized(name: str, setting: Setting) -> Outcome:
    """Our strategy gives the same with and without XLA: replicas have separate statistics, unlike one device."""
    full_float32()
    task = models.normalized(setting.small)
    uncompiled, ours = (compiled(task, mirrored(setting.devices), jit_compile=jit) for jit in (False, True))
    uncompiled.epoch()
    peak = peak_of_epoch(ours, setting.devices[0])
    require_xla(ours.model)
    gap = difference(ours, uncompiled)
    theirs, mine = step_ms(uncompiled, ours)
    note = f"without XLA {theirs:.1f} ms, with it {mine / theirs:.2f} of it"
    return judged(name, gap, WITH_XLA, ms=mine, peak_mb=peak, note=note)


def _overflow(name: str, setting: Setting) -> Outcome:
    """A row that overflows float16 on one replica skips the step on both, and halves the scale once."""
    keras.config.set_dtype_policy("mixed_float16")
    task = models.dense(setting.small)
    # The first row of the second batch, on replica 0. Its scaled gradients, divided by all numbers of a batch, are at
    # least 8e6, too large for float16; its loss, 1e18 divided by the number of rows, is finite in float32.
    task.y[task.batch_size] = 1e9
    plain, ours = compiled(task, device=setting.devices[0]), compiled(task, mirrored(setting.devices))
    for trained in (plain, ours):
        trained.epoch()
    scales = [float(np.asarray(trained.model.optimizer.dynamic_scale)) for trained in (plain, ours)]
    note = f"loss scale {scales[1]:.0f}, in plain Keras {scales[0]:.0f}"
    # The loss of that row hides all others.
    plain.losses, ours.losses = [], []
    outcome = judged(name, difference(ours, plain), HALF, note=note)
    return outcome if scales[0] == scales[1] < 2.0**15 else Outcome(name, "differs", note=note)


def _resumed(name: str, setting: Setting) -> Outcome:
    """Training that is saved, and loaded under a new strategy, continues without a difference."""
    strategies.exact()
    task = models.images(setting.small, num_steps=2)
    through, first = (compiled(task, mirrored(setting.devices)) for _ in range(2))
    for _ in range(2):
        through.epoch()
    first.epoch()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        first.model.save(path)
        with mirrored(setting.devices).scope():
            second = Trained(keras.models.load_model(path), task, list(first.losses))
    second.epoch()
    return judged(name, difference(second, through), EXACT)


def _peaks(name: str, setting: Setting) -> Outcome:
    """Measures the peak memory of GPipe and 1F1B on the first stage's device."""
    found: dict[str, float | None] = {}
    task = models.dense(setting.small, num_layers=8)
    for schedule in ("gpipe", "1f1b"):
        wrap = partial(keras_ext.PipelineModel, num_microbatches=8, schedule=schedule, partition="uniform")
        trained = compiled(task, mirrored(setting.devices, {"pipe": 2}), wrap)
        trained.epoch()
        found[schedule] = peak_of_epoch(trained, setting.devices[0])
    gpipe, one = found["gpipe"], found["1f1b"]
    if gpipe is None or one is None:
        return Outcome(name, note="this device counts no memory")
    return Outcome(name, "ok" if one < gpipe else "differs", peak_mb=one, note=f"1F1B; GPipe {gpipe:.0f} MB")


def _profile(name: str, setting: Setting) -> Outcome:
    """Counts copies, and the share of some steps' time in which no kernel runs, for ours and for plain Keras."""
    from tests.gpu.profile import profiled

    task = models.images(setting.small)
    plain, ours = compiled(task, device=setting.devices[0]), compiled(task, mirrored(setting.devices))
    for trained in (plain, ours):
        trained.epoch()
    note = f"{profiled(ours, setting)}; plain Keras: {profiled(plain, setting)}"
    return Outcome(name, ms=step_ms(ours)[0], note=note)


def _two_processes(name: str, setting: Setting) -> Outcome:
    from tests.gpu.two_processes import outcome

    return outcome(name, "cpu" if setting.small else "gpu", EXACT)


def _plain(model: Any) -> Any:
    return model


def _pipeline(model: Any) -> Any:
    return keras_ext.PipelineModel(model, num_microbatches=4, schedule="1f1b", partition="uniform")


def _all() -> list[Case]:
    """Returns the cases of several devices and processes first, since time may run out, then the twelve of one."""
    uneven = partial(models.dense, left_over=3)
    meshes: tuple[tuple[str, dict[str, int], Any, Any, dict[str, Any]], ...] = (
        ("data=2", {"data": 2}, models.language, _plain, {}),
        ("data=2, uneven batches", {"data": 2}, uneven, _plain, {}),
        ("data=2, uneven batches, with XLA", {"data": 2}, uneven, _plain, {"jit_compile": True}),
        ("data=2, steps_per_execution", {"data": 2}, models.dense, _plain, {"steps_per_execution": 2}),
        ("tensor=2", {"tensor": 2}, models.language, keras_ext.parallelize, {}),
        ("pipe=2", {"pipe": 2}, models.language, _pipeline, {}),
    )
    found = [
        Case(name, partial(_mesh, name, mesh, task, wrap, **options), num_devices=2)
        for name, mesh, task, wrap, options in meshes
    ]
    for name, run, num_devices in (
        ("data=2, BatchNormalization, with XLA", _normalized, 2),
        ("data=2, float16 overflow", _overflow, 2),
        ("two processes", _two_processes, 1),
        ("GPipe and 1F1B, peaks", _peaks, 2),
        ("save and resume", _resumed, 1),
        ("profile", _profile, 1),
    ):
        found.append(Case(name, partial(run, name), num_devices))
    tasks = [(problem, policy) for policy in ("float32", "mixed_bfloat16") for problem in _PROBLEMS]
    for problem, policy in tasks:
        name = f"{problem} {policy}, numbers"
        found.append(Case(name, partial(_one_device, name, problem, policy)))
    for jit in (True, False):
        for problem, policy in tasks:
            name = f"{problem} {policy}, speed{' with XLA' if jit else ''}"
            found.append(Case(name, partial(_speed, name, problem, policy, jit)))
    return found


#: By name, in the order of execution.
CASES = {case.name: case for case in _all()}
