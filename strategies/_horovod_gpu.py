"""The GPU part of Horovod's build: where CUDA and NCCL are, the patches, the flags.

The build was tried on a machine without a GPU, and its result has never run on one. This module needs the standard
library only.
"""

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strategies.cuda_version import tensorflow_cuda_version

#: The variable, from Horovod's documentation, that means the same as `--gpu`; NCCL is the only value that we can build.
OPERATIONS = {"HOROVOD_GPU_OPERATIONS": "NCCL"}

STREAM_FILE = "horovod/tensorflow/mpi_ops.cc"
_STREAM_BEGIN = "// Forward declaration of AsGpuStreamValue\n"
_STREAM_END = "#endif // HAVE_GPU\n"
# The header moved, and TensorFlow no longer exports the function: this one gets the CUDA stream from the stream itself.
_STREAM = """\
#include "xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
"""
# The library is linked in a temporary folder and copied from there: CMake would record that folder as its run path.
_RUN_PATH = """
set_target_properties(${{TF_TARGET_LIB}} PROPERTIES BUILD_WITH_INSTALL_RPATH TRUE INSTALL_RPATH "{}")
"""


@dataclass(frozen=True)
class GpuBuild:
    """The CUDA and NCCL found on this machine: everything that decides how Horovod is built for GPUs.

    `run_path` is the folder in which the built library looks for NCCL, None if the system knows it.
    """

    cuda_home: Path
    cuda_version: str
    nccl_header: Path
    nccl_library: Path
    nccl_version: str
    run_path: str | None

    @property
    def name(self) -> str:
        """The part of the installed version that names CUDA and NCCL, as in ``cuda12.5.nccl2.27``."""
        return f"cuda{self.cuda_version}.nccl{self.nccl_version}"

    @property
    def recipe(self) -> list[object]:
        """Everything except the versions that changes the built library."""
        return [OPERATIONS, _STREAM, _RUN_PATH, self.run_path]

    def flags(self, folder: Path, path: str) -> dict[str, str]:
        """Returns the build's environment variables; `folder` is that of `linked_nccl`, `path` the caller's $PATH."""
        return OPERATIONS | {
            "HOROVOD_CUDA_HOME": str(self.cuda_home),
            "HOROVOD_NCCL_INCLUDE": str(self.nccl_header.parent),
            "HOROVOD_NCCL_LIB": str(folder),
            "HOROVOD_NCCL_LINK": "SHARED",
            # Horovod asks the first nvcc on PATH for its architectures.
            "PATH": f"{self.cuda_home / 'bin'}:{path}",
        }

    def linked_nccl(self, folder: Path) -> Path:
        """Returns a new folder in `folder` with NCCL under the name that linkers expect, which NCCL's wheel lacks."""
        library = folder / "nccl"
        library.mkdir()
        (library / "libnccl.so").symlink_to(self.nccl_library)
        return library

    def patched_cmake(self, text: str) -> str:
        """Returns Horovod's CMake file for TensorFlow, changed so that the library finds NCCL at run time."""
        escaped = (self.run_path or "").replace("$", "\\$")
        return text + _RUN_PATH.format(escaped)


def patched_stream(text: str) -> str | None:
    """Returns `STREAM_FILE` as TensorFlow 2.16 and later need it; None if `text` is not the original file."""
    before, begin, rest = text.partition(_STREAM_BEGIN)
    _, end, after = rest.partition(_STREAM_END)
    if not begin or not end or _STREAM_BEGIN in after:
        return None
    return before + _STREAM + end + after


def find_gpu_build(environ: Mapping[str, str]) -> tuple[GpuBuild | None, list[str]]:
    """Returns CUDA and NCCL for the installed TensorFlow; or None and one sentence for each thing that is missing.

    `HOROVOD_CUDA_HOME` (or `CUDA_HOME`) and `HOROVOD_NCCL_HOME` name the folders. Without them nvcc is looked for on
    PATH and in /usr/local/cuda, NCCL in the wheel that TensorFlow's extra `and-cuda` installs, beside CUDA, in /usr.
    """
    missing = []
    wanted = tensorflow_cuda_version()
    major = _major(wanted or "12")
    if wanted is None:
        missing.append("The installed TensorFlow is not built for CUDA.")
    home = _cuda_home(environ)
    version = None if home is None else _nvcc_version(home / "bin" / "nvcc")
    if home is None or version is None:
        missing.append(f"There is no working nvcc: install CUDA {major} and name its folder in HOROVOD_CUDA_HOME.")
    elif wanted is not None and _major(version) != major and "HOROVOD_CUDA_HOME" not in environ:
        missing.append(
            f"nvcc in {home} is of CUDA {version}, TensorFlow is built with {wanted}: name the folder of a CUDA "
            f"{major} in HOROVOD_CUDA_HOME (or this one, to mix them)."
        )
    nccl = _find_nccl(environ, home)
    if nccl is None:
        missing.append(
            f"There is no NCCL with nccl.h and libnccl.so.2: python -m pip install nvidia-nccl-cu{major}, "
            "or name its folder in HOROVOD_NCCL_HOME."
        )
    if missing or home is None or version is None or nccl is None:
        return None, missing
    header, library, run_path = nccl
    return GpuBuild(home, version, header, library, _nccl_version(header), run_path), []


def _cuda_home(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("HOROVOD_CUDA_HOME") or environ.get("CUDA_HOME")
    if named:
        return Path(named)
    found = shutil.which("nvcc", path=environ.get("PATH"))
    # nvcc may be in the toolkit's folder, a link to it, or a script that calls it.
    folders = [Path(found).parents[1], Path(found).resolve().parents[1]] if found else []
    for home in (*folders, Path("/usr/local/cuda")):
        if (home / "bin" / "nvcc").exists() and (home / "include" / "cuda_runtime.h").exists():
            return home
    return None


def _nvcc_version(nvcc: Path) -> str | None:
    try:
        output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    match = re.search(r"release (\d+\.\d+)", output)
    return match and match[1]


def _find_nccl(environ: Mapping[str, str], cuda_home: Path | None) -> tuple[Path, Path, str | None] | None:
    """Returns NCCL's header and library, and the folder in which the built library looks for it if not the system's."""
    named = environ.get("HOROVOD_NCCL_HOME")
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl"
    folders = [Path(named)] if named else [wheel, *([cuda_home] if cuda_home else []), Path("/usr")]
    for home in folders:
        header = home / "include" / "nccl.h"
        for folder in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"):
            library = home / folder / "libnccl.so.2"
            if header.exists() and library.exists():
                # Relative to horovod/tensorflow in the same environment, which may be moved.
                elsewhere = "$ORIGIN/../../nvidia/nccl/lib" if home == wheel else str(library.parent)
                return header, library, None if home == Path("/usr") else elsewhere
    return None


def _nccl_version(header: Path) -> str:
    text = header.read_text()
    return ".".join(re.findall(r"^#define NCCL_(?:MAJOR|MINOR) (\d+)", text, flags=re.MULTILINE))


def _major(version: str) -> str:
    return version.partition(".")[0]
