"""The whole check of a release: ``python -m tests.release``, which `make release` runs.

It leaves sdist and wheel in dist/ if they hold what they should and the wheel works by itself: installed into an empty
environment, it trains and fine-tunes on two devices and in two processes, in an empty folder whose name has a space.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from strategies.command_line import COMMANDS, script_name
from tests.processes import ROOT
from tests.release.building import build_release, run
from tests.release.contents import sdist_problems, wheel_problems

_DIST = ROOT / "dist"
_PROGRAMS = [Path(__file__).with_name(name) for name in ("train.py", "finetune.py")]
#: A type checker that reads the wheel's types refuses the second line.
_TYPED = 'import strategies\nstrategies.MirroredStrategy(mesh="data")\n'
_TIMEOUT_SECONDS = 900


def main() -> int:
    """Builds, checks and tries a release; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = sorted(build_release(Path(folder), _DIST), key=lambda path: path.suffix == ".whl")
        problems = [f"{sdist.name} {each}" for each in sdist_problems(sdist)]
        problems += [f"{wheel.name} {each}" for each in wheel_problems(wheel)]
        for problem in problems:
            print(problem, file=sys.stderr)
        if problems:
            return 1
        run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
        print(f"built and checked: {sdist.name}, {wheel.name}", flush=True)
        _try(wheel, Path(folder) / "empty environment", Path(folder) / "a new user")
    print(f"dist/ has {sdist.name} and {wheel.name}")
    return 0


def _try(wheel: Path, environment: Path, folder: Path) -> None:
    """Installs a wheel into an empty environment, and trains with it in an empty folder."""
    folder.mkdir()
    for program in _PROGRAMS:
        shutil.copy(program, folder)
    own = environment / "bin"
    # Neither this environment nor the repository must help.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables["PATH"] = f"{own}{os.pathsep}{variables['PATH']}"

    def done(*command: str) -> str:
        return _output(command, folder, variables)

    done(sys.executable, "-m", "venv", str(environment))
    python, launch = str(own / "python"), (str(own / "strategies-launch"), "--nproc-per-node", "2")
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done(*install, str(wheel))
    one, two = done(python, "train.py"), done(*launch, "train.py")
    for output, replicas in ((one, "replicas: 2,"), (two, "replicas: 4,")):
        if replicas not in output:
            raise RuntimeError(f"The program's output has no line with {replicas!r}:\n{output[-4000:]}")
    _same_loss(one, two)
    for name in COMMANDS:
        done(str(own / script_name(name)), "--help")
    done(python, "-m", "strategies")
    plain = "import keras; print(keras.saving.load_model('model.keras').count_params())"
    done(python, "-c", plain)
    (folder / "typed.py").write_text(_TYPED)
    checked = (sys.executable, "-m", "mypy", "--ignore-missing-imports", "--python-executable", python, "typed.py")
    if "[arg-type]" not in (found := _output(checked, folder, variables, code=1)):
        raise RuntimeError(f"mypy does not read the types of the installed package:\n{found[-4000:]}")
    done(*install, f"{wheel}[hub]")
    tuned = done(python, "finetune.py"), done(*launch, "finetune.py")
    if not all("after: 'the cat saw the dog'" in output for output in tuned):
        raise RuntimeError(f"Fine-tuning has not learnt its texts:\n{tuned[0][-2000:]}\n{tuned[1][-2000:]}")


def _same_loss(one: str, two: str) -> None:
    losses = [float(output.rpartition("last loss: ")[2].split()[0]) for output in (one, two)]
    if abs(losses[0] - losses[1]) > 1e-6 * max(1.0, abs(losses[0])):
        raise RuntimeError(f"One process and two end with the losses {losses}.")
    print(f"one process with two devices, and two processes: loss {losses[0]:.6f}", flush=True)


def _output(command: Sequence[str], folder: Path, variables: Mapping[str, str], code: int = 0) -> str:
    """Runs a command, prints how long it took, and returns its output.

    Raises:
        RuntimeError: it did not end with `code`.
    """
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    if done.returncode != code:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    print(f"{time.perf_counter() - start:6.1f} s  {Path(command[0]).name} {' '.join(command[1:])}", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
