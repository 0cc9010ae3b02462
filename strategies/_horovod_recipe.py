"""The recipe of the Horovod build, as data and checks: versions, tools, flags, the wheel's folder.

`install_horovod` does the building. This module needs the standard library only, and writes nothing but the patches of
`patch_tree`.
"""

import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from strategies._horovod_gpu import OPERATIONS, STREAM_FILE, GpuBuild, find_gpu_build, patched_stream

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
CMAKE_FILE = "horovod/tensorflow/CMakeLists.txt"
UNBUILDABLE_SOURCE = "xla_mpi_ops.cc"

# The `horovod` extra in pyproject.toml gives their versions; a test keeps the two lists the same.
BUILD_PACKAGES = ("cloudpickle", "packaging", "psutil", "pyyaml", "setuptools", "wheel")
SETUPTOOLS_MAJORS = range(65, 85)

# TensorFlow's headers need C++17, and Horovod's CMake files need CMake 3.13.
MINIMUM_TOOLS = {"g++": (8, 0), "cmake": (3, 13)}
DEBIAN_PACKAGES = {"g++": "g++", "cmake": "cmake", "make": "make", "mpicxx": "libopenmpi-dev openmpi-bin"}

_BUILD_FLAGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    # Gloo's own CMake files name a version that CMake 4 refuses without this.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}
_BACKEND_FLAGS = {
    "gloo": {"HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1"},
    # Both, so that `horovodrun --gloo` still works.
    "mpi": {"HOROVOD_WITH_MPI": "1", "HOROVOD_WITH_GLOO": "1"},
}

#: A function of a template that nothing calls, with an assignment to a constant: GCC 14 refuses it all the same.
_UNCALLED_FILE = "third_party/flatbuffers/include/flatbuffers/stl_emulation.h"
_UNCALLED_LINE = "    count_ = other.count_;\n"
#: Headers that Horovod and Gloo use without including them, which the standard library of GCC up to 12 includes anyway.
#: Not part of `recipe_id`, like the line above: what is built does not depend on them.
_FORCED_INCLUDES = "-include cstdint -include stdexcept -include string"


class InstallError(Exception):
    """Horovod cannot be built or installed here; the message has the reason and the fix."""


def recipe_id(backend: str, gpu: GpuBuild | None = None) -> str:
    """Returns eight hex digits that change whenever this recipe would build something else from the same versions."""
    parts: list[object] = [HOROVOD_VERSION, SDIST_SHA256, UNBUILDABLE_SOURCE, _BUILD_FLAGS, _BACKEND_FLAGS[backend]]
    if gpu is not None:
        parts += gpu.recipe
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def local_version(tensorflow_version: str, backend: str, gpu: GpuBuild | None = None) -> str:
    """Returns the part after `+` in the installed version: what Horovod is built for, as pip spells it.

    Example: ``tf2.21.0.gloo.r1f2e3d4c``, or ``tf2.21.0.gloo.cuda12.5.nccl2.27.r5b6a7988``.
    """
    parts = [_tensorflow_part(tensorflow_version), backend, *([gpu.name] if gpu else []), f"r{recipe_id(backend, gpu)}"]
    return ".".join(parts)


def is_built_for(version: str, tensorflow_version: str) -> bool:
    """Returns True unless the version of an installed Horovod names another TensorFlow than the given one."""
    _, _, local = version.partition("+")
    return not local.startswith("tf") or local.startswith(f"{_tensorflow_part(tensorflow_version)}.")


def _tensorflow_part(version: str) -> str:
    return f"tf{re.sub(r'[^a-z0-9]+', '.', version.lower())}"


def cache_key(tensorflow_version: str, backend: str, gpu: GpuBuild | None = None) -> str:
    """Returns the name of the wheel's cache folder, made of everything that decides whether a wheel fits."""
    libc = "".join(platform.libc_ver())
    python = sys.implementation.cache_tag
    version = f"{HOROVOD_VERSION}+{local_version(tensorflow_version, backend, gpu)}"
    return f"{version}-{python}-{sysconfig.get_platform()}-{libc}"


def default_wheel_dir(environ: Mapping[str, str]) -> Path:
    """Returns `keras-strategies/horovod` in the user's cache folder: `$XDG_CACHE_HOME`, else `~/.cache`."""
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "keras-strategies" / "horovod"


def patch_cmake(text: str) -> str:
    """Returns Horovod's CMake file for TensorFlow without the one source that does not compile.

    Raises:
        InstallError: unless exactly one line names that source: otherwise the tree is not the original one.
    """
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if UNBUILDABLE_SOURCE not in line]
    num_dropped = len(lines) - len(kept)
    if num_dropped != 1:
        raise InstallError(
            f"{CMAKE_FILE} should name {UNBUILDABLE_SOURCE} in one line. Received: {num_dropped} such lines. "
            f"The sources are not those of Horovod {HOROVOD_VERSION}, or were changed before."
        )
    return "".join(kept)


def patch_tree(tree: Path, gpu: GpuBuild | None) -> None:
    """Changes Horovod's sources in `tree` so that they compile, for GPUs if one is given.

    Raises:
        InstallError: if a file is not the original one.
    """
    cmake_file = tree / CMAKE_FILE
    cmake = patch_cmake(cmake_file.read_text())
    template = tree / _UNCALLED_FILE
    template.write_text(template.read_text().replace(_UNCALLED_LINE, ""))
    if gpu is not None:
        cmake = gpu.patched_cmake(cmake)
        stream = patched_stream((tree / STREAM_FILE).read_text())
        if stream is None:
            raise InstallError(f"{STREAM_FILE} is not that of Horovod {HOROVOD_VERSION}, or was changed before.")
        (tree / STREAM_FILE).write_text(stream)
    cmake_file.write_text(cmake)


def check_tools(backend: str, path: str | None = None) -> dict[str, str]:
    """Finds the build tools on `path` (default: $PATH) and returns the path of each.

    Raises:
        InstallError: if one is missing or too old; the message names all missing ones and their Debian packages.
    """
    names = ["g++", "cmake", "make"] + (["mpicxx"] if backend == "mpi" else [])
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        packages = " ".join(DEBIAN_PACKAGES[name] for name in missing)
        raise InstallError(
            f"Building Horovod needs {', '.join(names)}. Not found on PATH: {', '.join(missing)}. "
            f"On Debian or Ubuntu: apt-get install {packages}"
        )
    tools = {name: where for name, where in found.items() if where is not None}
    for name, minimum in MINIMUM_TOOLS.items():
        # g++ prints several numbers with --version: the distributor's first, then its own.
        flag = "-dumpfullversion" if name == "g++" else "--version"
        output = subprocess.run([tools[name], flag], capture_output=True, text=True, check=False).stdout
        match = re.search(r"(\d+)\.(\d+)", output)
        if match is None or (int(match[1]), int(match[2])) < minimum:
            received = match[0] if match else repr(output)
            raise InstallError(
                f"Building Horovod needs {name} {minimum[0]}.{minimum[1]} or newer. Received: {received} "
                f"({tools[name]}). Install a newer one and put it first on PATH."
            )
    return tools


def check_python() -> str:
    """Checks the Python packages that the build imports and returns TensorFlow's version.

    Raises:
        InstallError: if one is missing or its version does not build; the message has the command that installs it.
    """
    tensorflow = tensorflow_version()
    if tensorflow is None:
        raise InstallError(
            f"Horovod is built against the installed TensorFlow, and {sys.executable} has none. "
            "Install it first: python -m pip install tensorflow"
        )
    # Not `importlib.util.find_spec`: setuptools' finder warns then if distutils was imported, and removes it.
    if importlib.machinery.PathFinder.find_spec("pip") is None:
        raise InstallError(f"{sys.executable} has no pip. Install it: python -m ensurepip")
    setuptools = f"setuptools>={SETUPTOOLS_MAJORS.start},<{SETUPTOOLS_MAJORS.stop}"
    wrong: dict[str, str | None] = {}
    for name in BUILD_PACKAGES:
        version = installed_version(name)
        if name == "setuptools" and int((version or "0").split(".")[0]) not in SETUPTOOLS_MAJORS:
            wrong[setuptools] = version
        elif version is None:
            wrong[name] = None
    if wrong:
        received = ", ".join(f"{name} (is {version or 'missing'})" for name, version in wrong.items())
        names = " ".join(f"'{name}'" for name in wrong)
        raise InstallError(
            f"Building Horovod needs these Python packages as well: {received}. "
            f"Install them: python -m pip install {names}"
        )
    return tensorflow


def build_environment(
    backend: str,
    tensorflow: str,
    tools: Mapping[str, str],
    environ: Mapping[str, str],
    gpu: GpuBuild | None = None,
) -> dict[str, str]:
    """Returns the build's environment: `environ` with our flags, and without variables that would change the build.

    A build for GPUs also needs `GpuBuild.flags`, which depend on the build's folder.
    """
    # If a `make` called us, its variables name a job server that this build cannot reach.
    clean = {
        name: value
        for name, value in environ.items()
        if not name.startswith("HOROVOD_") and name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH")
    }
    version = {"HOROVOD_LOCAL_VERSION": local_version(tensorflow, backend, gpu)}
    flags = _BUILD_FLAGS | _BACKEND_FLAGS[backend] | version
    flags["CXXFLAGS"] = f"{clean.get('CXXFLAGS', '')} {_FORCED_INCLUDES}".strip()
    num_jobs = len(os.sched_getaffinity(0))
    return clean | flags | {"CXX": tools["g++"], "HOROVOD_CMAKE": tools["cmake"], "MAKEFLAGS": f"-j{num_jobs}"}


def gpu_asked(environ: Mapping[str, str]) -> bool:
    """Returns True if `environ` asks for GPUs by the variable of Horovod's documentation.

    Raises:
        InstallError: if it asks for a different GPU build.
    """
    asked = {name: value for name, value in environ.items() if name.startswith("HOROVOD_GPU")}
    if asked and asked != OPERATIONS:
        received = ", ".join(f"{name}={value}" for name, value in sorted(asked.items()))
        raise InstallError(
            "For GPUs this builds Horovod with NCCL for all operations: HOROVOD_GPU_OPERATIONS=NCCL or --gpu. "
            f"Received: {received}. Unset {' and '.join(sorted(asked.keys() - OPERATIONS.keys()) or sorted(asked))}."
        )
    return bool(asked)


def choose_gpu_build(asked: bool, environ: Mapping[str, str]) -> tuple[GpuBuild | None, str]:
    """Returns the CUDA and NCCL to build for, or None for the CPU version, and a sentence with the reason.

    Raises:
        InstallError: if GPUs are `asked` for and something is missing; the message names all of it.
    """
    gpu, missing = find_gpu_build(environ)
    if gpu is not None:
        return gpu, (
            f"For GPUs: CUDA {gpu.cuda_version} in {gpu.cuda_home}, NCCL {gpu.nccl_version} in "
            f"{gpu.nccl_library.parent}. This build has never run on a GPU; --cpu builds without."
        )
    reasons = " ".join(missing)
    if asked:
        raise InstallError(f"Horovod cannot be built for GPUs here. {reasons}")
    return None, f"For CPUs: tensors on GPUs would travel through the host. For GPUs it lacks: {reasons}"


def tensorflow_version() -> str | None:
    """Returns the version of the installed package of TensorFlow, as pip spells it; None if there is none."""
    return installed_version("tensorflow") or installed_version("tensorflow-cpu")


def installed_version(package: str) -> str | None:
    """Returns the version of `package` in this environment, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
