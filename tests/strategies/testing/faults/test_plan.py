"""Faults as data: their text, their builder, and refused values; without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strategies.testing import faults
from strategies.testing.faults.record import Pending

HURT = (
    faults.fail_at(rank=1, step=40, kind="kill")
    .fail_at(step=3, kind="slow", seconds=0.5)
    .fail_at(rank=0, step=60, kind="full_disk", at="save", byte=4096)
)


def test_the_builder_adds() -> None:
    assert [str(fault) for fault in HURT.faults] == [
        "kill of rank 1 at step, from step 40",
        "slow of all ranks at step, from step 3",
        "full_disk of rank 0 at save, byte 4096, from step 60",
    ]
    assert faults.fail_at(kind="leave").faults == (faults.Fault("leave"),)


def test_they_travel_in_the_environment() -> None:
    hurt = HURT.recorded_in(Path("run") / "faults")
    environment = hurt.environment()
    assert list(environment) == ["STRATEGIES_FAULTS"]
    assert faults.Faults.from_environment(environment) == hurt
    assert '{"kind": "kill", "step": 40, "rank": 1}' in environment["STRATEGIES_FAULTS"]
    assert faults.Faults.from_environment({}) == faults.Faults()


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"faults": [{"kin": "kill"}]}', '{"faults": [3]}', '{"faults": [{}]}']
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"STRATEGIES_FAULTS must look like .* Received: "):
        faults.Faults.from_json(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "explode"}, "kind must be one of"),
        ({"kind": "kill", "at": "noon"}, "at one of"),
        ({"kind": "kill", "step": -1}, "step must be a whole number from 0. Received: step=-1"),
        ({"kind": "kill", "step": 1.5}, "step must be a whole number"),
        ({"kind": "kill", "rank": -1}, "rank must be"),
        ({"kind": "kill", "at": "save", "write": 0}, "write must be a whole number from 1"),
        ({"kind": "stop", "seconds": -1.0}, "seconds must not be negative"),
        ({"kind": "slow"}, "needs the seconds"),
        ({"kind": "slow", "seconds": 1.0, "at": "save"}, "the moment 'step'"),
        ({"kind": "full_disk"}, "at='save'"),
        ({"kind": "kill", "byte": 3}, "byte, from 0"),
        ({"kind": "raise", "at": "save", "byte": 3}, "byte, from 0"),
    ],
)
def test_what_cannot_happen_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        faults.fail_at(**arguments)


def test_a_fault_is_due_from_its_step_on_and_happens_once() -> None:
    pending = Pending(HURT, rank=1)
    assert [index for index, _ in pending.due("step", end=40)] == [1]
    assert [index for index, _ in pending.due("step", end=41)] == [0, 1]
    assert pending.take(0)
    assert not pending.take(0)
    assert [index for index, _ in pending.due("step", end=90)] == [1]
    assert not pending.due("save", end=90)
    assert [index for index, _ in Pending(HURT, rank=0).due("save", end=61)] == [2]


def test_a_record_outlives_the_process(tmp_path: Path) -> None:
    hurt = HURT.recorded_in(tmp_path / "record")
    assert hurt.happened() == {}
    assert Pending(hurt, rank=1).take(0)
    again = Pending(hurt, rank=1)
    assert [index for index, _ in again.due("step", end=90)] == [1]
    assert not again.take(0)
    assert list(hurt.happened()) == [0]
    # A fault of all ranks happens to each of them.
    assert again.take(1)
    assert Pending(hurt, rank=0).take(1)


def test_describing_faults_needs_no_tensorflow() -> None:
    program = (
        "import sys\nfrom strategies.testing import faults\nimport strategies.testing.faults.striking\n"
        "faults.fail_at(kind='kill').environment()\n"
        "sys.exit(str([name for name in ('tensorflow', 'keras', 'numpy') if name in sys.modules] or ''))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).stderr.strip() == b""
