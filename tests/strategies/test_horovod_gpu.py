"""The parts of Horovod's GPU build that need neither a GPU nor a build: detection, patches, flags."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from strategies import _horovod_gpu as gpu
from strategies import _horovod_recipe as recipe
from strategies import install_horovod
from strategies.cuda_version import tensorflow_cuda_version

PRISTINE = """\
#include <cuda_runtime.h>
// Forward declaration of AsGpuStreamValue
GpuStreamHandle AsGpuStreamValue(Stream* stream);
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
#endif // HAVE_GPU
#if HAVE_GPU
#endif // HAVE_GPU
"""
BUILD = gpu.GpuBuild(
    Path("/cuda"), "12.5", Path("/nccl/include/nccl.h"), Path("/nccl/lib/libnccl.so.2"), "2.27", "$ORIGIN/nccl"
)


def touch(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def cuda(tmp_path: Path) -> Path:
    touch(tmp_path / "cuda/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.5, V12.5.1'\n")
    touch(tmp_path / "cuda/include/cuda_runtime.h")
    return tmp_path / "cuda"


@pytest.fixture
def nccl(tmp_path: Path) -> Path:
    touch(tmp_path / "nccl/include/nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 7\n")
    touch(tmp_path / "nccl/lib/libnccl.so.2")
    return tmp_path / "nccl"


@pytest.fixture(autouse=True)
def tensorflow_of_cuda_12(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "tensorflow_cuda_version", lambda: "12.5.1")


class TestFinding:
    def test_by_variables(self, cuda: Path, nccl: Path) -> None:
        named = {"HOROVOD_CUDA_HOME": str(cuda), "HOROVOD_NCCL_HOME": str(nccl)}
        found, missing = gpu.find_gpu_build(named)
        assert missing == []
        assert found is not None
        assert (found.cuda_home, found.nccl_library) == (cuda, nccl / "lib" / "libnccl.so.2")
        assert found.name == "cuda12.5.nccl2.27"
        assert found.run_path == str(nccl / "lib")

    def test_nvcc_by_path_and_nccl_from_its_wheel(
        self, cuda: Path, nccl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "nvidia").mkdir()
        (tmp_path / "nvidia" / "nccl").symlink_to(nccl)
        monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
        found, _ = gpu.find_gpu_build({"PATH": str(cuda / "bin")})
        assert found is not None
        assert found.cuda_home == cuda
        # The path is relative because the cached wheel serves other environments, too.
        assert found.run_path == "$ORIGIN/../../nvidia/nccl/lib"

    def test_all_that_is_missing_is_said_at_once(self, tmp_path: Path) -> None:
        nowhere = {"HOROVOD_CUDA_HOME": str(tmp_path), "HOROVOD_NCCL_HOME": str(tmp_path)}
        found, missing = gpu.find_gpu_build(nowhere)
        assert found is None
        assert [text.split(":")[0] for text in missing] == [
            "There is no working nvcc",
            "There is no NCCL with nccl.h and libnccl.so.2",
        ]
        assert "CUDA 12" in missing[0]
        assert "nvidia-nccl-cu12" in missing[1]

    def test_another_cuda_than_tensorflows_has_to_be_named(self, cuda: Path, nccl: Path) -> None:
        touch(cuda / "bin" / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
        found, missing = gpu.find_gpu_build({"CUDA_HOME": str(cuda), "HOROVOD_NCCL_HOME": str(nccl)})
        assert found is None
        assert "of CUDA 13.0, TensorFlow is built with 12.5.1" in missing[0]
        found, _ = gpu.find_gpu_build({"HOROVOD_CUDA_HOME": str(cuda), "HOROVOD_NCCL_HOME": str(nccl)})
        assert found is not None

    def test_needs_a_tensorflow_for_cuda(self, cuda: Path, nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu, "tensorflow_cuda_version", lambda: None)
        named = {"HOROVOD_CUDA_HOME": str(cuda), "HOROVOD_NCCL_HOME": str(nccl)}
        assert gpu.find_gpu_build(named) == (None, ["The installed TensorFlow is not built for CUDA."])


def test_the_version_of_tensorflows_cuda_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.undo()
    build = tf.sysconfig.get_build_info()
    version = tensorflow_cuda_version()
    # The build information of TensorFlow 2.22 does not name the version.
    assert version == build.get("cuda_version", version)
    assert (version is not None) == build["is_cuda_build"]


class TestChoosing:
    def test_gpus_that_are_asked_for_and_not_there_end_it(self, tmp_path: Path) -> None:
        nowhere = {"HOROVOD_CUDA_HOME": str(tmp_path), "HOROVOD_NCCL_HOME": str(tmp_path)}
        with pytest.raises(recipe.InstallError, match=r"for GPUs here\. There is no working nvcc: .*NCCL"):
            recipe.choose_gpu_build(True, nowhere)
        found, why = recipe.choose_gpu_build(False, nowhere)
        assert found is None
        assert why.startswith("For CPUs: ")
        assert "There is no NCCL" in why

    def test_horovods_own_variable_asks_for_gpus(self) -> None:
        assert recipe.gpu_asked({"HOROVOD_GPU_OPERATIONS": "NCCL", "HOME": "/h"})
        assert not recipe.gpu_asked({"HOME": "/h"})

    @pytest.mark.parametrize(
        ("name", "value"),
        [("HOROVOD_GPU_OPERATIONS", "MPI"), ("HOROVOD_GPU", "ROCM"), ("HOROVOD_GPU_ALLREDUCE", "NCCL")],
    )
    def test_nothing_else_about_gpus_is_built(self, name: str, value: str) -> None:
        with pytest.raises(recipe.InstallError, match=f"Received: {name}={value}. Unset {name}"):
            recipe.gpu_asked({name: value})

    def test_the_command_line_says_what_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(install_horovod, "check_python", lambda: "2.21.0")
        monkeypatch.setenv("HOROVOD_NCCL_HOME", str(tmp_path))
        with pytest.raises(SystemExit, match=r"^install_horovod: Horovod cannot be built for GPUs here"):
            install_horovod.main(["--gpu"])


class TestBuilding:
    def test_version_and_key_say_so_and_those_for_cpus_stay(self) -> None:
        version = recipe.local_version("2.21.0", "gloo", BUILD)
        assert version.startswith("tf2.21.0.gloo.cuda12.5.nccl2.27.r")
        assert version in recipe.cache_key("2.21.0", "gloo", BUILD)
        assert recipe.recipe_id("gloo", BUILD) != recipe.recipe_id("gloo")
        elsewhere = dataclasses.replace(BUILD, run_path="/opt/nccl")
        assert recipe.recipe_id("gloo", elsewhere) != recipe.recipe_id("gloo", BUILD)
        # Finished wheels for CPUs stay valid.
        assert recipe.local_version("2.21.0", "gloo") == "tf2.21.0.gloo.r8b900250"

    def test_the_stream_is_asked_for_its_handle(self) -> None:
        patched = gpu.patched_stream(PRISTINE)
        assert patched is not None
        assert "platform_specific_handle()" in patched
        assert "tensorflow/stream_executor" not in patched
        assert patched.count("#endif // HAVE_GPU") == 2
        assert gpu.patched_stream(patched) is None
        assert gpu.patched_stream("") is None

    def test_patches_of_a_tree(self, tmp_path: Path) -> None:
        template = touch(tmp_path / recipe._UNCALLED_FILE, "    data_ = other.data_;\n    count_ = other.count_;\n")
        cmake = touch(tmp_path / recipe.CMAKE_FILE, 'list(APPEND TF_SOURCES "a/xla_mpi_ops.cc")\nadd_library(t)\n')
        stream = touch(tmp_path / gpu.STREAM_FILE, PRISTINE)
        recipe.patch_tree(tmp_path, BUILD)
        assert 'INSTALL_RPATH "\\$ORIGIN/nccl"' in cmake.read_text()
        assert "xla_mpi_ops" not in cmake.read_text()
        assert stream.read_text() == gpu.patched_stream(PRISTINE)
        assert template.read_text() == "    data_ = other.data_;\n"
        cmake.write_text('list(APPEND TF_SOURCES "a/xla_mpi_ops.cc")\n')
        with pytest.raises(recipe.InstallError, match=r"mpi_ops\.cc is not that of Horovod"):
            recipe.patch_tree(tmp_path, BUILD)

    def test_a_build_for_cpus_leaves_the_stream_alone(self, tmp_path: Path) -> None:
        touch(tmp_path / recipe._UNCALLED_FILE, "")
        cmake = touch(tmp_path / recipe.CMAKE_FILE, 'list(APPEND TF_SOURCES "a/xla_mpi_ops.cc")\nadd_library(t)\n')
        recipe.patch_tree(tmp_path, None)
        assert cmake.read_text() == "add_library(t)\n"

    def test_the_environment(self, tmp_path: Path) -> None:
        library = BUILD.linked_nccl(tmp_path)
        assert (library / "libnccl.so").readlink() == BUILD.nccl_library
        flags = BUILD.flags(library, "/usr/bin")
        assert flags["HOROVOD_GPU_OPERATIONS"] == "NCCL"
        assert flags["HOROVOD_CUDA_HOME"] == "/cuda"
        assert flags["HOROVOD_NCCL_INCLUDE"] == "/nccl/include"
        assert flags["HOROVOD_NCCL_LIB"] == str(library)
        assert flags["PATH"] == "/cuda/bin:/usr/bin"
