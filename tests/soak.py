"""Injects faults into a small training job, and checks that it ends as if nothing had happened.

    python -m tests.soak --faults=200 --engine=both --seed=7

Faults are drawn from kinds, moments, ranks and steps. After each fault that ends the job, the same command is run
again, until the job has finished. Its weights must be those of an undisturbed run, bit for bit; no run may hang or
leave a process behind. Starting Python and TensorFlow takes most of the time, so each job gets many faults.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from strategies.testing.faults import Fault, Faults, Kind, Moment
from tests.processes import ROOT, horovodrun, marked_after

ENGINES = ("launcher", "horovod")
NUM_RANKS, NUM_STEPS = 2, 120
FAULTS_PER_JOB = 20
HANGS_AFTER_SECONDS = 120.0
# The size of a checkpoint; some are a little larger, so that a limit is not always reached.
CHECKPOINT_BYTES = 30_000
_PROGRAM = str(ROOT / "tests" / "programs" / "soaked.py")
# All processes of a run inherit this variable, which identifies those that outlive it.
_MARK = "KERAS_STRATEGIES_SOAK"

#: The kinds of faults at each moment.
CHOICES: tuple[tuple[Moment, tuple[Kind, ...]], ...] = (
    ("start", ("kill", "terminate", "stop", "raise", "leave")),
    ("tracing", ("kill", "terminate", "stop")),
    ("step", ("kill", "terminate", "stop", "slow", "raise", "leave")),
    ("epoch_end", ("kill", "terminate", "stop", "raise", "leave")),
    ("save", ("kill", "terminate", "stop", "raise", "leave", "full_disk")),
)


def draw(chance: random.Random, count: int) -> Faults:
    """Returns `count` faults.

    At most one rank is stopped for good: if all ranks are, `horovodrun` waits forever.
    """
    may_stop = chance.randrange(NUM_RANKS)
    return Faults(tuple(_draw_one(chance, may_stop) for _ in range(count)))


def _draw_one(chance: random.Random, may_stop: int) -> Fault:
    at, kinds = chance.choice(CHOICES)
    kind = chance.choice(kinds)
    # A process restarts only while faults end it: faults at a start have early steps.
    step = chance.randrange(NUM_STEPS // 4 if at in ("start", "tracing") else NUM_STEPS)
    # Only rank 0 writes.
    rank = 0 if at == "save" else chance.randrange(NUM_RANKS)
    seconds = None
    if kind == "slow":
        seconds = 0.02
    elif kind == "stop":
        # For a short time, or for good.
        seconds = chance.choice((1.0, None)) if rank == may_stop else 1.0
    elif at == "step":
        # At any time in the step: during computation or communication.
        seconds = chance.uniform(0.0, 0.01)
    elif at == "tracing":
        seconds = chance.uniform(0.0, 1.0)
    if at == "save" and kind in ("kill", "full_disk") and chance.random() < 0.5:
        return Fault(kind, step, rank, at, byte=chance.randrange(CHECKPOINT_BYTES))
    return Fault(kind, step, rank, at, seconds, write=chance.randint(1, 4) if at == "save" else 1)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault: exit code and seconds until the job ended; None where the job continued."""

    fault: Fault
    code: int | None = None
    seconds: float | None = None
    hung: bool = False


@dataclass(frozen=True)
class Run:
    """One run of a command: its exit code, its end, and the number of processes that outlived it."""

    code: int | None
    end: float
    num_orphans: int


def command(engine: str, folder: Path, max_restarts: int) -> list[str]:
    """Returns the command that starts or resumes the job."""
    if engine == "horovod":
        return horovodrun(NUM_RANKS, [_PROGRAM, str(folder), engine], in_one_family=True)
    restarts = ["--max-restarts", str(max_restarts)] if max_restarts else []
    launcher = [sys.executable, "-m", "strategies.launch", "--nproc-per-node", str(NUM_RANKS), *restarts]
    return [*launcher, _PROGRAM, str(folder), engine]


def run(words: Sequence[str], log: Path, environment: dict[str, str]) -> Run:
    """Runs a command to its end; if it hangs, kills it and everything that it started."""
    mark = uuid.uuid4().hex
    quiet = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", _MARK: mark}
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=os.environ | quiet | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        code: int | None = None
        try:
            code = process.wait(HANGS_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end = time.time()
            if code is None:
                process.kill()
                process.wait()
            # A process that continues a stopped one sleeps for some seconds.
            orphans = marked_after(_MARK, mark, 0.0 if code is None else 4.0)
            for orphan in orphans:
                output.write(f"outlived the run: {orphan.pid}\n".encode())
                orphan.kill()
            psutil.wait_procs(orphans, timeout=10)
    return Run(code, end, 0 if code is None else len(orphans))


class Job:
    """One training job in its own folder.

    Args:
        engine: one of `ENGINES`.
        folder: folder for checkpoints, the record of faults, and the log.
        max_restarts: the launcher's restarts, before the command itself is run again.
    """

    def __init__(self, engine: str, folder: Path, max_restarts: int = 0) -> None:
        self._engine, self._folder, self._max_restarts = engine, folder, max_restarts
        self.log = folder / "log.txt"
        self.num_orphans = 0
        self.num_runs = 0
        folder.mkdir(parents=True)

    def finish(self, faults: Faults) -> list[Outcome]:
        """Runs the command until the job has finished, or has failed without a fault; returns each fault's outcome."""
        hurt = faults.recorded_in(self._folder / "record")
        found: dict[int, Outcome] = {}
        words = command(self._engine, self._folder, self._max_restarts)
        # Each run but the last ends with at least one fault.
        for _ in range(len(faults.faults) + 1):
            before = hurt.happened()
            ended = run(words, self.log, hurt.environment())
            self.num_runs += 1
            self.num_orphans += ended.num_orphans
            new = {index: at for index, at in hurt.happened().items() if index not in before}
            found |= {index: Outcome(faults.faults[index]) for index in new}
            if self.weights.exists() and ended.code == 0:
                break
            if not new:
                print(f"{self.log}: ended without a fault, exit code {ended.code}")
                break
            last = max(new, key=new.__getitem__)
            found[last] = Outcome(faults.faults[last], ended.code, ended.end - new[last], ended.code is None)
            print(f"  {found[last].fault}: exit code {ended.code} after {found[last].seconds:.1f} s", flush=True)
        return list(found.values())

    @property
    def weights(self) -> Path:
        """The file that the program writes at its end."""
        return self._folder / "weights.npz"


def same_bits(one: Path, other: Path) -> bool:
    """Returns True if both files exist and have the same weights, bit for bit."""
    if not (one.exists() and other.exists()):
        return False
    with np.load(one) as first, np.load(other) as second:
        pairs = zip(first.values(), second.values(), strict=True)
        return first.files == second.files and all(a.tobytes() == b.tobytes() for a, b in pairs)


def table(outcomes: Iterable[Outcome]) -> str:
    """Returns a table of the outcomes by kind and moment."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        how = "" if outcome.fault.byte is None else " (byte)"
        how = how or (" (for good)" if outcome.fault.kind == "stop" and outcome.fault.seconds is None else "")
        groups.setdefault((outcome.fault.kind + how, outcome.fault.at), []).append(outcome)
    lines = [f"{'kind':<20}{'moment':<11}{'faults':>7}{'ended':>7}{'hangs':>7}{'min':>7}{'median':>8}{'max':>7}  codes"]
    for (kind, at), group in sorted(groups.items()):
        seconds = [each.seconds for each in group if each.seconds is not None]
        times = [min(seconds), statistics.median(seconds), max(seconds)] if seconds else []
        texts = [f"{value:.1f}" for value in times] or ["-"] * 3
        codes = " ".join(sorted({str(each.code) for each in group if each.seconds is not None}))
        hangs = sum(each.hung for each in group)
        numbers = f"{len(group):>7}{len(seconds):>7}{hangs:>7}{texts[0]:>7}{texts[1]:>8}{texts[2]:>7}"
        lines.append(f"{kind:<20}{at:<11}{numbers}  {codes}")
    return "\n".join(lines)


def soak(
    engine: str, num_faults: int, chance: random.Random, folder: Path, max_restarts: int
) -> tuple[list[Outcome], list[str]]:
    """Runs jobs of one engine with faults; returns the outcomes of the faults that occurred, and the errors."""
    calm = Job(engine, folder / f"{engine}-calm")
    calm.finish(Faults())
    if not calm.weights.exists():
        return [], [f"{calm.log}: the undisturbed run failed"]
    outcomes: list[Outcome] = []
    wrong: list[str] = []
    for number, first in enumerate(range(0, num_faults, FAULTS_PER_JOB)):
        faults = draw(chance, min(FAULTS_PER_JOB, num_faults - first))
        job = Job(engine, folder / f"{engine}-{number}", max_restarts)
        start = time.monotonic()
        found = job.finish(faults)
        outcomes += found
        same = same_bits(job.weights, calm.weights)
        if not same:
            wrong.append(f"{job.log}: other weights than the undisturbed run, or none")
        if job.num_orphans:
            wrong.append(f"{job.log}: {job.num_orphans} processes outlived their run")
        wrong += [f"{job.log}: hung: {each.fault}" for each in found if each.hung]
        print(
            f"{engine}, job {number}: {len(found)} of {len(faults.faults)} faults happened in {job.num_runs} runs, "
            f"{time.monotonic() - start:.0f} s; weights {'equal' if same else 'DIFFER'}, {job.num_orphans} orphans",
            flush=True,
        )
    return outcomes, wrong


def main() -> None:
    """Draws and injects faults, checks, and prints the tables; exits non-zero if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Hurts a training job again and again.")
    parser.add_argument("--faults", type=int, default=20, help="how many for each engine")
    parser.add_argument("--engine", choices=[*ENGINES, "both"], default="both")
    parser.add_argument("--seed", type=int, default=None, help="repeats the faults of a run that printed it")
    parser.add_argument("--folder", type=Path, default=None, help="kept; without it a temporary folder")
    parser.add_argument("--max-restarts", type=int, default=0, help="of the launcher, where it has that option")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    print(f"--seed={seed}", flush=True)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    wrong: list[str] = []
    for engine in ENGINES if arguments.engine == "both" else [arguments.engine]:
        chance = random.Random(f"{seed} {engine}")
        outcomes, found = soak(engine, arguments.faults, chance, folder, arguments.max_restarts)
        wrong += found
        print(f"\n{engine}\n{table(outcomes)}\n", flush=True)
    print("\n".join(wrong) or "all well")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
