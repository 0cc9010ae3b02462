"""Runs the suite: `python -m tests.gpu`, from the repository's root.

Every case has a process of its own, with a timeout. The table of outcomes is printed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.outcome import Outcome, table

_ROOT = Path(__file__).parents[2]
_COUNT = "import tensorflow as tf; print('GPUs', len(tf.config.list_physical_devices('GPU')))"
_NAMES = "from tests.gpu.cases import CASES; print(*CASES, sep='\\n')"


def run_case(name: str, kind: str, timeout_seconds: float) -> Outcome:
    """Runs a case in a process of its own, which is ended when its time is over."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "outcome.json", Path(folder) / "log"
        command = [sys.executable, "-m", "tests.gpu.one", name, kind, str(file)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=_ROOT, env=_environment(kind), stdout=output, stderr=output)
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(name, "timeout", note=f"ended after {timeout_seconds:.0f} s")
        finally:
            process.kill()
            process.wait()
        last = log.read_text(errors="replace").strip().splitlines()
        outcome = Outcome.from_json(file.read_text()) if file.exists() else None
        if outcome is None or outcome.result == "failed":
            print("\n".join(last[-40:]), file=sys.stderr)
        return outcome or Outcome(name, "failed", note=f"exit code {process.returncode}: {' '.join(last[-1:])[:200]}")


def _environment(kind: str) -> dict[str, str]:
    added = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if kind == "cpu":
        added["CUDA_VISIBLE_DEVICES"] = "-1"
    return {**os.environ, **added, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}


def _lines(code: str, kind: str) -> list[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=_ROOT, env=_environment(kind), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the chosen cases; returns 0 if all are well, or if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", choices=("gpu", "cpu"), default="gpu", help="cpu: small models, to try the suite")
    parser.add_argument("--case", action="append", help="only the cases with this in their name; repeatable")
    parser.add_argument("--list", action="store_true", help="only print the names of the cases")
    parser.add_argument("--timeout-seconds", type=float, default=180.0, help="for each case")
    parser.add_argument("--limit-minutes", type=float, default=20.0, help="no case starts after that")
    parser.add_argument("--table", type=Path, help="write the table to this file, too")
    parser.add_argument("--results", type=Path, help="append outcomes to this file as they come, as JSON lines")
    flags = parser.parse_args(argv)
    if flags.devices == "gpu" and "GPUs 0" in _lines(_COUNT, "gpu"):
        print("There is no GPU here: nothing was run. (--devices=cpu tries the suite with small models.)")
        return 0
    names = [n for n in _lines(_NAMES, "cpu") if not flags.case or any(part in n for part in flags.case)]
    if flags.list or not names:
        print("\n".join(names) or f"No case has any of this in its name: {flags.case}")
        return 0 if names else 2
    begin, outcomes = time.monotonic(), []
    for name in names:
        started = time.monotonic()
        if started - begin > 60.0 * flags.limit_minutes:
            outcome = Outcome(name, "left out", note=f"{flags.limit_minutes:g} minutes were over")
        else:
            outcome = run_case(name, flags.devices, flags.timeout_seconds)
        outcomes.append(outcome)
        print(f"{name}: {outcome.result} ({time.monotonic() - started:.0f} s) {outcome.note}", flush=True)
        if flags.results:
            with flags.results.open("a") as file:
                file.write(outcome.as_json() + "\n")
    print(f"\n{table(outcomes)}")
    if flags.table:
        flags.table.write_text(table(outcomes) + "\n")
    return int(any(outcome.result != "ok" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
