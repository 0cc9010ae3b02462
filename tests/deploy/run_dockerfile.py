"""Runs the lines of Dockerfiles in a fresh Debian tree, then trains in it: `make deploy-tests` calls it.

    python -m tests.deploy.run_dockerfile [--build-horovod] [--keep FOLDER]

The Dockerfiles are deploy/docker/Dockerfile and, on top of it, deploy/sagemaker/Dockerfile.

There is no Docker engine here: debootstrap makes the tree, and each RUN is a shell in it, in mount and process
namespaces of its own, so that neither mounts nor processes stay. What this does not show: the base image itself, its
layers, and networks of containers. Needs root, debootstrap and Debian's mirror. Horovod's wheel is taken from this
user's cache, if that has one; with --build-horovod the lines build it, four minutes more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tests.deploy.dockerfile import Instruction, context_files, parse

ROOT = Path(__file__).parents[2]
CPU = ROOT / "deploy" / "docker" / "Dockerfile"
SAGEMAKER = ROOT / "deploy" / "sagemaker" / "Dockerfile"
#: The tag that the second Dockerfile builds on.
TAG = "keras-strategies:cpu"
WHEELS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "keras-strategies" / "horovod"
# The settings of this machine that lead pip and TLS to the outside: containers get theirs from whoever runs the engine.
PASSED_ON = re.compile(r"(PIP_|SSL_|.*_CA_|.*CA_BUNDLE|.*PROXY$)", re.IGNORECASE)
# The folder of the tree at which files of the machine are seen that PASSED_ON names.
OUTSIDE = "/outside"
# The shell that enters the tree: $1 is the tree, $2 the command.
ENTER = """
tree=$1; command=$2
mount -t proc proc "$tree/proc" && mount --rbind /dev "$tree/dev" || exit 125
exec chroot "$tree" /bin/sh -c "$command"
"""
MNIST = "examples/mnist/main.py --epochs=1 --run_dir=/tmp/runs/{}"
CHECKS = {
    "two processes train": f"strategies-launch --nproc-per-node 2 {MNIST.format('ours')} --strategy=multi_worker",
    "two processes train under Horovod": f"horovodrun -np 2 python {MNIST.format('horovod')} --strategy=horovod",
    "sshd accepts its configuration": "/usr/sbin/sshd -t",
    "no compiler stays": "! command -v g++ && ! command -v cmake",
}
# What SageMaker puts below /opt/ml of a job's only machine.
SAGEMAKER_FILES = {
    "input/config/resourceconfig.json": {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"},
    "input/config/hyperparameters.json": {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"/opt/ml/code"',
        "sagemaker_region": '"nowhere"',
        "epochs": "2",
    },
    "input/config/inputdataconfig.json": {"training": {"TrainingInputMode": "File"}},
}
SAGEMAKER_CHECKS = {
    "digits are in the channel": "python /opt/ml/make_digits.py /opt/ml/input/data/training/digits.npz",
    "SageMaker's toolkit starts the script": "train && test -s /opt/ml/model/model.keras",
}


class Tree:
    """The files of an image, and the state that instructions change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._workdir = PurePosixPath("/")
        outside = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        self._outside = {value for value in outside.values() if value.startswith("/") and Path(value).exists()}
        outside = {name: OUTSIDE + value if value in self._outside else value for name, value in outside.items()}
        self._environment = {"HOME": "/root", "PATH": os.defpath, **outside}

    def apply(self, instruction: Instruction) -> None:
        """Executes an instruction.

        Raises:
            subprocess.CalledProcessError: a command failed.
        """
        match instruction.name:
            case "FROM":
                self._begin(instruction.text)
            case "ENV":
                self._environment |= instruction.variables
            case "WORKDIR":
                self._workdir /= instruction.text
                (self.folder / self._workdir.relative_to("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(instruction.words)
            case "RUN":
                self.run(instruction.text)

    def run(self, command: str, limit_seconds: float = 1800.0) -> None:
        """Runs a shell command in the tree."""
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        enter = [*namespaces, "sh", "-c", ENTER, "enter", str(self.folder), f"cd {self._workdir} && {command}"]
        subprocess.run(enter, env=self._environment, stdin=subprocess.DEVNULL, check=True, timeout=limit_seconds)

    def _begin(self, image: str) -> None:
        if image == TAG:
            return
        name, _, tag = image.partition(":")
        if name != "debian":
            raise ValueError(f"only images of Debian can be replaced by debootstrap. Received: {image}")
        suite = tag.removesuffix("-slim")
        subprocess.run(["debootstrap", "--variant=minbase", suite, str(self.folder)], check=True, timeout=1800)
        # The files that an engine writes into each container.
        shutil.copy("/etc/resolv.conf", self.folder / "etc")
        (self.folder / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
        for path in map(Path, self._outside):
            copy = self.folder / OUTSIDE.lstrip("/") / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, copy, dirs_exist_ok=True)
            else:
                shutil.copy(path, copy)
        # As in Docker's images: packages start no services.
        policy = self.folder / "usr" / "sbin" / "policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        to = self.folder / (self._workdir / target).relative_to("/")
        files = context_files(ROOT, (ROOT / ".dockerignore").read_text())
        for source in sources:
            found = [file for file in files if file == PurePosixPath(source) or PurePosixPath(source) in file.parents]
            if not found:
                raise ValueError(f"COPY: {source} is not in the build context: see .dockerignore")
            for file in found:
                is_folder = file != PurePosixPath(source)
                path = to / file.relative_to(source) if is_folder else to / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, path)


def main() -> int:
    """Runs all instructions and the checks; returns 0 if they succeed."""
    parser = argparse.ArgumentParser(description="Runs the lines of Dockerfiles in a fresh Debian tree.")
    parser.add_argument("--build-horovod", action="store_true", help="build Horovod, also if its wheel is in the cache")
    parser.add_argument("--keep", type=Path, help="make the tree in this folder, and keep it")
    flags = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("Needs root and debootstrap. On Debian: apt-get install debootstrap", file=sys.stderr)
        return 1
    if flags.keep:
        flags.keep.mkdir(parents=True)
        return _run_in(flags.keep.resolve(), flags.build_horovod)
    with tempfile.TemporaryDirectory(prefix="debian-", dir="/var/tmp") as folder:
        return _run_in(Path(folder), flags.build_horovod)


def _run_in(folder: Path, build_horovod: bool) -> int:
    tree = Tree(folder)
    begin = time.monotonic()

    def report(text: str) -> None:
        print(f"== {time.monotonic() - begin:4.0f} s: {text}", flush=True)

    def execute(dockerfile: Path) -> None:
        for instruction in parse(dockerfile.read_text()):
            report(f"{dockerfile.parent.name}, line {instruction.line}: {instruction.name} {instruction.text[:100]}")
            tree.apply(instruction)
            if instruction.name == "FROM" and dockerfile == CPU and WHEELS.is_dir() and not build_horovod:
                # A copy: the Dockerfile removes the cache of its build.
                shutil.copytree(WHEELS, folder / "root" / ".cache" / "keras-strategies" / "horovod")

    def check(commands: Mapping[str, str]) -> None:
        for what, command in commands.items():
            report(f"{what}: {command}")
            tree.run(command, limit_seconds=300.0)

    try:
        execute(CPU)
        check(CHECKS)
        execute(SAGEMAKER)
        _write_sagemaker_files(folder)
        check(SAGEMAKER_CHECKS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        report(f"failed: {error.cmd[-1]}: {error}"[:2000])
        return 1
    report("all lines and checks succeeded")
    return 0


def _write_sagemaker_files(tree: Path) -> None:
    with (tree / "etc" / "hosts").open("a") as hosts:
        # The toolkit waits until the names of all machines are known.
        hosts.write("127.0.0.1 algo-1\n")
    folder = tree / "opt" / "ml"
    for name in ("input/data/training", "model", "output", "checkpoints"):
        (folder / name).mkdir(parents=True)
    for name, value in SAGEMAKER_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    shutil.copytree(SAGEMAKER.parent / "source", folder / "code")
    shutil.copy(SAGEMAKER.parent / "make_digits.py", folder)


if __name__ == "__main__":
    sys.exit(main())
