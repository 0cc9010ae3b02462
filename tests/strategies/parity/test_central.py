"""The parity law with variables on a parameter device: ``CentralStorageStrategy``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import strategies
from tests.releases import marks_of
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.cases_sharded import OWN
from tests.strategies.parity.harness import Outcome, compare, execute
from tests.strategies.parity.selection import IN_A_CONDITIONAL

#: Its variables are on another device than the replica, which cannot wait for that in a conditional.
EVERY = {name: case for name, case in {**ALL, **OWN}.items() if name != IN_A_CONDITIONAL}
#: Each treatment of gradients by an optimizer, and each kind of read, write and lookup by replicas.
ALWAYS = (
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "custom loop, loss over the global batch",
    "table looked up by positions and by rows, Adam",
    # Others use each element of a gradient and of a slot alone, as Adam does, which the next case contains.
    *("Adafactor", "ScheduleFreeAdamW"),
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "MultiOptimizer",
    "LossScaleOptimizer, clipnorm",
    "Embedding, sparse gradients, clipnorm",
    "Embedding, sparse gradients, gradient_accumulation_steps",
    "run_eagerly=True",
    "state of each kind that a layer keeps",
    "mixed_float16, overflow on one replica only",
    *(name for name in OWN if name != "saved, loaded, gone on"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        names = EVERY if metafunc.config.getoption("--parity-all") else ALWAYS
        numbers = (2, 3) if metafunc.config.getoption("--parity-all") else (2,)
        pairs = [
            pytest.param(number, name, id=f"{number} compute devices: {name}", marks=marks_of(name))
            for number in numbers
            for name in names
        ]
        metafunc.parametrize(("num_compute_devices", "name"), pairs)


def test_equals_one_device(num_compute_devices: int, name: str, on_one_device: Callable[[str], Outcome]) -> None:
    compute_devices = [f"CPU:{i + 1}" for i in range(num_compute_devices)]
    strategy = strategies.CentralStorageStrategy(compute_devices, "CPU:0")
    plain = on_one_device(name) if name in ALL else execute(OWN[name], None)
    difference = compare(plain, execute(EVERY[name], strategy))
    assert difference.largest <= EVERY[name].tolerance, difference


def test_refuses_updates_in_a_conditional() -> None:
    strategy = strategies.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")
    with pytest.raises(ValueError, match=r"inside a tf\.cond.*CentralStorageStrategy"):
        execute(ALL[IN_A_CONDITIONAL], strategy)
