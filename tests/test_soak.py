"""The soak's parts without processes: what it draws, prints and compares."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from strategies.testing.faults import Fault
from tests import soak


def test_a_seed_repeats_the_faults_and_all_of_them_are_drawn() -> None:
    drawn = soak.draw(random.Random("7 launcher"), 400)
    assert drawn == soak.draw(random.Random("7 launcher"), 400)
    assert drawn != soak.draw(random.Random("8 launcher"), 400)
    pairs = {(fault.at, fault.kind) for fault in drawn.faults}
    assert pairs == {(at, kind) for at, kinds in soak.CHOICES for kind in kinds}
    assert {fault.rank for fault in drawn.faults if fault.at == "save"} == {0}
    assert {fault.rank for fault in drawn.faults} == {0, 1}
    assert len({fault.rank for fault in drawn.faults if fault.kind == "stop" and fault.seconds is None}) == 1


def test_the_table() -> None:
    kill = Fault("kill", 3, 1)
    outcomes = [
        soak.Outcome(kill, -9, 2.0),
        soak.Outcome(kill, 1, 1.0),
        soak.Outcome(kill),
        soak.Outcome(Fault("stop", 1, 0, "start"), None, 120.0, hung=True),
        soak.Outcome(Fault("full_disk", 1, 0, "save", byte=7)),
    ]
    assert soak.table(outcomes).split("\n") == [
        "kind                moment      faults  ended  hangs    min  median    max  codes",
        "full_disk (byte)    save             1      0      0      -       -      -  ",
        "kill                step             3      2      0    1.0     1.5    2.0  -9 1",
        "stop (for good)     start            1      1      1  120.0   120.0  120.0  None",
    ]


def test_weights_are_compared_bit_for_bit(tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("b", 0.0), ("c", -0.0)):
        np.savez(tmp_path / f"{name}.npz", np.ones(3), np.array([value]))
    assert soak.same_bits(tmp_path / "a.npz", tmp_path / "b.npz")
    assert not soak.same_bits(tmp_path / "a.npz", tmp_path / "c.npz")
    assert not soak.same_bits(tmp_path / "a.npz", tmp_path / "none.npz")


def test_restarts_are_the_launchers_own(tmp_path: Path) -> None:
    assert "--max-restarts" not in soak.command("launcher", tmp_path, 0)
    assert "--max-restarts" in soak.command("launcher", tmp_path, 3)
    assert "--max-restarts" not in soak.command("horovod", tmp_path, 3)
