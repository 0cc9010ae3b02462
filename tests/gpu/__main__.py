"""Runs the suite: `python -m tests.gpu`, from the repository's root.

Every case has its own process, with a timeout, and sees one GPU. The table of outcomes is printed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
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
_NOT_LISTED = """This machine has a GPU ({files}), but TensorFlow lists none: nothing was run.
- `nvidia-smi` has to list the GPU, and a driver for CUDA 12 or newer.
- TensorFlow has to find CUDA's libraries: python -m pip install --editable '.[gpu]' (make gpu-smoke does that).
- CUDA_VISIBLE_DEVICES has to be unset, or to begin with a GPU. It is {visible}.
- python -c "import tensorflow as tf; tf.config.list_physical_devices('GPU')" says what TensorFlow misses."""


def run_case(name: str, kind: str, timeout_seconds: float) -> Outcome:
    """Runs a case in its own process; on a timeout, kills it with everything that it has started."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "outcome.json", Path(folder) / "log"
        command = [sys.executable, "-m", "tests.gpu.one", name, kind, str(file)]
        code = run_group(command, _environment(kind), log, timeout_seconds)
        if code is None:
            return Outcome(name, "timeout", note=f"ended after {timeout_seconds:.0f} s")
        last = log.read_text(errors="replace").strip().splitlines()
        outcome = Outcome.from_json(file.read_text()) if file.exists() else None
        if outcome is None or outcome.result == "failed":
            print("\n".join(last[-40:]), file=sys.stderr)
        return outcome or Outcome(name, "failed", note=f"exit code {code}: {' '.join(last[-1:])[:200]}")


def run_group(command: Sequence[str], environment: dict[str, str], log: Path, timeout_seconds: float) -> int | None:
    """Runs a command as a process group and kills what is left of it; returns its exit code, None on a timeout."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Ranks that outlive their parent would keep GPU memory from the next case.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(kind: str) -> dict[str, str]:
    added = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    # One GPU, as on a machine with one: with several visible, TensorFlow would sum over logical GPUs by NCCL, which
    # refuses two ranks on one GPU.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    added["CUDA_VISIBLE_DEVICES"] = "-1" if kind == "cpu" else visible.split(",")[0].strip()
    return {**os.environ, **added, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}


def _lines(code: str, kind: str) -> list[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=_ROOT, env=_environment(kind), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def device_files() -> list[str]:
    """Returns the device files of NVIDIA's driver, one for each GPU of this machine or container."""
    return sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the selected cases; returns 0 if all pass, or if the machine has no GPU."""
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
        if files := device_files():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            print(_NOT_LISTED.format(files=", ".join(files), visible="unset" if visible is None else repr(visible)))
            return 1
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
    # If terminated, it also ends the running case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
