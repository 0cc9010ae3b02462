"""Installed versions, and the build options of Horovod."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

from strategies._horovod_recipe import installed_version, is_built_for, tensorflow_version
from strategies.doctoring.report import Report
from strategies.versions import TESTED, is_tested

_INSTALL_HOROVOD = "python -m strategies.install_horovod"


def check_horovod(report: Report, timeout_seconds: float = 60.0) -> None:
    """Reports the installed Horovod and its build options, determined in a child process."""
    version = installed_version("horovod")
    if version is None:
        report.section("horovod", {"installed": False, "to install": _INSTALL_HOROVOD})
        return
    # Not `horovodrun --check-build`, which imports TensorFlow half a dozen times.
    code = "import horovod.tensorflow as h; print([int(bool(b())) for b in (h.gloo_built, h.mpi_built, h.nccl_built)])"
    # The import must not act as a rank of the job.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_", "PMIX_"))}
    try:
        done = subprocess.run(
            # -P: ignore a folder named horovod in the working directory.
            [sys.executable, "-P", "-c", code],
            env=clean | {"CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        report.section("horovod", {"installed": version, "built with": f"no answer in {timeout_seconds:g} s"})
        return
    built: list[str] = []
    if done.returncode == 0:
        bits = json.loads(done.stdout.splitlines()[-1])
        built = [name for name, bit in zip(("Gloo", "MPI", "NCCL"), bits, strict=True) if bit]
    report.section("horovod", {"installed": version, "built with": built})
    # Candidates have another spelling in `tf.__version__`.
    tensorflow = tensorflow_version() or tf.__version__
    if not is_built_for(version, tensorflow):
        report.problem(
            f"Horovod {version} was built for another TensorFlow than the installed {tensorflow}. Build it for "
            f"this one: {_INSTALL_HOROVOD}"
        )
    elif done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        report.problem(f"Horovod {version} does not work here: {why}. Rebuild it: {_INSTALL_HOROVOD} --force")


def check_versions(report: Report) -> None:
    """Reports the installed versions; one that this release is not tested with, or two of Keras, are a problem."""
    names = ("keras-strategies", "tensorflow", "keras", "numpy")
    versions = {name: installed_version(name) or "not installed as a package" for name in names}
    versions |= {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}
    report.section("versions", {"python": platform.python_version(), **versions, "platform": platform.platform()})
    for name, (low, high) in TESTED.items():
        if not is_tested(name, versions[name]):
            report.problem(
                f"{name} {versions[name]} is not one of the versions that this package is tested with. Install one: "
                f"python -m pip install '{name}>={low},<{high}'"
            )
    if installed_version("keras") and installed_version("keras-nightly"):
        # TensorFlow 2.22.0rc0 requires keras-nightly.
        report.problem(
            "The packages keras and keras-nightly are both installed: they have the same files, of which each has "
            "replaced some. Remove both, then install one: python -m pip uninstall --yes keras keras-nightly; "
            "python -m pip install keras"
        )
    if keras.config.backend() != "tensorflow":
        report.problem(f"Keras runs on {keras.config.backend()}, not on TensorFlow. Set KERAS_BACKEND=tensorflow")
