"""Builds Horovod against the installed TensorFlow and installs it: ``python -m strategies.install_horovod``.

Horovod's last release does not compile against TensorFlow 2.16 and later: one of its source files, for XLA custom
calls on GPUs, includes headers that TensorFlow no longer ships. This build leaves that file out. Processes communicate
over Gloo, or over Gloo and MPI. Tensors on GPUs are sent by NCCL if nvcc and NCCL are found (`--gpu` requires them,
`--cpu` ignores them), and through the host otherwise. The finished wheel is kept in the user's cache folder and is
installed from there the next time the same versions are wanted.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from strategies._horovod_gpu import GpuBuild
from strategies._horovod_recipe import (
    HOROVOD_VERSION,
    SDIST_SHA256,
    InstallError,
    build_environment,
    cache_key,
    check_python,
    check_tools,
    choose_gpu_build,
    default_wheel_dir,
    gpu_asked,
    installed_version,
    local_version,
    patch_tree,
)
from strategies.atomic_file import atomic_file
from strategies.command_line import Parser

_LOG_LINES_SHOWN = 30
_ERRORS_SHOWN = 5


def build_wheel(folder: Path, environment: Mapping[str, str], log: Path, gpu: GpuBuild | None = None) -> Path:
    """Downloads Horovod's sources into the empty `folder`, patches and builds them; returns the wheel.

    The build's output goes to `log`. Each build needs a new `folder`: a second one in the same source tree fails.

    Raises:
        InstallError: if a step fails.
    """
    # Deleting `folder` then also deletes the temporary files of pip and the compiler, even after a kill.
    environment = {**environment, "TMPDIR": str(folder)}
    requirement = folder / "requirement.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n")
    # The build imports TensorFlow, so it runs in this environment and not in an isolated one.
    common = ["--no-deps", "--no-build-isolation"]
    download = ["download", "--no-binary=horovod", "--require-hashes", f"--requirement={requirement}"]
    # Without the local version: pip refuses sources whose version is not the one that was requested.
    plain = {name: value for name, value in environment.items() if name != "HOROVOD_LOCAL_VERSION"}
    python = interpreter_without_spaces(folder)
    _pip([*download, *common, f"--dest={folder / 'sdist'}"], plain, log, python)
    with tarfile.open(next((folder / "sdist").glob("horovod-*.tar.gz"))) as archive:
        # Python 3.11.2, which Debian 12 has, knows no filters; the archive is the one that the hash names.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    tree = folder / f"horovod-{HOROVOD_VERSION}"
    patch_tree(tree, gpu)
    if gpu is not None:
        environment |= gpu.flags(gpu.linked_nccl(folder), environment.get("PATH", os.defpath))
    # Without pip's cache: it would keep a second copy, under the name of a temporary folder that is never used again.
    target = f"--wheel-dir={folder / 'wheel'}"
    _pip(["wheel", "--no-cache-dir", *common, target, str(tree)], environment, log, python)
    return next((folder / "wheel").glob("horovod-*.whl"))


def interpreter_without_spaces(folder: Path) -> str:
    """Returns the path of this interpreter, through a link in `folder` if its own path has spaces.

    TensorFlow's compiler flags contain its own path, and Horovod's CMake files split these flags at spaces.
    """
    executable = Path(sys.executable)
    if not re.search(r"\s", sys.prefix) or not executable.is_relative_to(sys.prefix):
        return sys.executable
    link = folder / "environment"
    link.symlink_to(sys.prefix)
    return str(link / executable.relative_to(sys.prefix))


def cached_wheel(kept: Path, environment: Mapping[str, str], *, force: bool, gpu: GpuBuild | None = None) -> Path:
    """Returns the wheel in the folder `kept`; builds it first if there is none or if `force`.

    The wheel appears there in one step, so a build that is killed leaves no incomplete wheel.

    Raises:
        InstallError: if the build fails; its log then stays in `kept`.
    """
    wheel = next(kept.glob("*.whl"), None)
    if wheel is not None and not force:
        print(f"Using the wheel built before: {wheel}")
        return wheel
    print(f"Building Horovod {HOROVOD_VERSION} in a temporary folder; this takes some minutes.", flush=True)
    log = kept / "failed-build.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as folder:
        built = build_wheel(Path(folder), environment, log, gpu)
        wheel = kept / built.name
        with atomic_file(wheel) as part:
            shutil.copyfile(built, part)
    log.unlink()
    return wheel


def install(wheel: Path, backend: str, gpu: GpuBuild | None = None) -> None:
    """Installs `wheel` into this environment and imports it once, in another process.

    Raises:
        InstallError: if pip refuses it or the import fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "install.log"
        _pip(["install", "--no-deps", "--force-reinstall", str(wheel)], os.environ, log)
        code = f"import horovod.tensorflow as hvd; assert hvd.{backend}_built()"
        if gpu is not None:
            code += "; assert hvd.nccl_built()"
        # -P: a folder named horovod in the current directory must not be imported instead of the package.
        if _run([sys.executable, "-P", "-c", code], os.environ, log) != 0:
            raise InstallError(f"{_tail(log)}\n{wheel.name} does not work here. Build it again with --force.")


@contextlib.contextmanager
def _locked(kept: Path) -> Iterator[None]:
    """Context manager: locks the folder; a second run waits for the first one, and then finds its wheel."""
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another run is building in {kept}; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip(arguments: Sequence[str], environment: Mapping[str, str], log: Path, python: str = sys.executable) -> None:
    command = [python, "-m", "pip", "--no-input", *arguments]
    if _run(command, environment, log) != 0:
        raise InstallError(f"{_tail(log)}\npip {arguments[0]} failed. Its last lines are above; all of it: {log}")


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Runs a command, with its output appended to `log`; its child processes end with it, also if we are stopped."""
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _tail(log: Path) -> str:
    """Returns the last lines of a log, and below them the first errors of the compiler, which may be far above them."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.strip() for line in lines[:-_LOG_LINES_SHOWN] if re.search(r":\d+: (fatal )?error: ", line)]
    return "\n".join([*lines[-_LOG_LINES_SHOWN:], *errors[:_ERRORS_SHOWN]])


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the flags, builds if needed, installs, and prints the result.

    Raises:
        SystemExit: with the message of an InstallError.
    """
    parser = Parser("install_horovod")
    parser.add_argument("--mpi", action="store_true", help="build for MPI (tried: Open MPI) beside Gloo")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--gpu", action="store_true", help="build for GPUs (NCCL), or end with what is missing")
    devices.add_argument("--cpu", action="store_true", help="build without GPUs, even if nvcc and NCCL are installed")
    parser.add_argument(
        "--force", action="store_true", help="build again even if a wheel exists or Horovod is installed"
    )
    parser.add_argument(
        "--wheel-dir", type=Path, metavar="FOLDER", help="keeps finished wheels; default: the user's cache"
    )
    flags = parser.parse_args(argv)
    backend = "mpi" if flags.mpi else "gloo"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped by SIGTERM."))
    try:
        tensorflow = check_python()
        gpu, why = None, ""
        if not flags.cpu:
            gpu, why = choose_gpu_build(flags.gpu or gpu_asked(os.environ), os.environ)
        wanted = f"{HOROVOD_VERSION}+{local_version(tensorflow, backend, gpu)}"
        if installed_version("horovod") == wanted and not flags.force:
            print(f"Horovod {wanted} is installed already. Nothing to do.")
            return
        environment = build_environment(backend, tensorflow, check_tools(backend), os.environ, gpu)
        kept = (flags.wheel_dir or default_wheel_dir(os.environ)) / cache_key(tensorflow, backend, gpu)
        if why:
            print(why)
        with _locked(kept):
            install(cached_wheel(kept, environment, force=flags.force, gpu=gpu), backend, gpu)
    except InstallError as error:
        raise SystemExit(f"install_horovod: {error}") from None
    print(f"Installed Horovod {wanted}.")


if __name__ == "__main__":
    main()
