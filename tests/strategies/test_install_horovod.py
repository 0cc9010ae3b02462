"""The parts of the Horovod installation that need no build: keys, checks, the patch, the environment."""

import contextlib
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import psutil
import pytest

from strategies import _horovod_recipe as recipe
from strategies import install_horovod

CMAKE_TEXT = 'list(APPEND TF_SOURCES "a/mpi_ops.cc")\nlist(APPEND TF_SOURCES "a/xla_mpi_ops.cc")\nadd_library(t)\n'
TOOLS = {"g++": "/tools/g++", "cmake": "/tools/cmake", "make": "/tools/make"}
ALL_TOOLS = {"g++": "12.2.0", "cmake": "cmake version 3.25.1", "make": "", "mpicxx": ""}


@pytest.fixture
def toolbox(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Returns a folder for PATH with one executable per name; each prints its text as its version."""
    for name, version in request.param.items():
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\necho '{version}'\n")
        tool.chmod(0o755)
    return str(tmp_path)


class TestPatch:
    def test_drops_the_one_line(self) -> None:
        assert recipe.patch_cmake(CMAKE_TEXT) == ('list(APPEND TF_SOURCES "a/mpi_ops.cc")\nadd_library(t)\n')

    def test_refuses_a_second_patch(self) -> None:
        with pytest.raises(recipe.InstallError, match="Received: 0 such lines"):
            recipe.patch_cmake(recipe.patch_cmake(CMAKE_TEXT))

    def test_refuses_other_sources(self) -> None:
        with pytest.raises(recipe.InstallError, match="Received: 2 such lines"):
            recipe.patch_cmake(CMAKE_TEXT * 2)


class TestKey:
    def test_names_what_decides_whether_a_wheel_fits(self) -> None:
        key = recipe.cache_key("2.21.0", "gloo")
        for part in (recipe.HOROVOD_VERSION, "tf2.21.0", "gloo", sys.implementation.cache_tag or "", "linux"):
            assert part in key

    @pytest.mark.parametrize(("version", "backend"), [("2.21.1", "gloo"), ("2.21.0", "mpi")])
    def test_differs_with_tensorflow_and_backend(self, version: str, backend: str) -> None:
        assert recipe.cache_key(version, backend) != recipe.cache_key("2.21.0", "gloo")

    def test_differs_with_the_recipe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = recipe.cache_key("2.21.0", "gloo")
        monkeypatch.setitem(recipe._BUILD_FLAGS, "HOROVOD_DEBUG", "1")
        assert recipe.cache_key("2.21.0", "gloo") != before

    def test_is_the_same_in_every_process(self) -> None:
        code = "from strategies._horovod_recipe import recipe_id; print(recipe_id('gloo'))"
        env = os.environ | {"PYTHONHASHSEED": "7"}
        output = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert output.stdout.split()[-1] == recipe.recipe_id("gloo")

    @pytest.mark.parametrize("version", ["2.21.0", "2.22.0rc1", "2.21.0+nv25.3", "2.22.0-dev20260101"])
    def test_local_version_is_as_pip_writes_it(self, version: str) -> None:
        from packaging.version import Version

        local = recipe.local_version(version, "gloo")
        assert Version(f"0.28.1+{local}").local == local

    def test_default_folder_follows_xdg(self) -> None:
        assert recipe.default_wheel_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/keras-strategies/horovod")
        assert recipe.default_wheel_dir({}) == Path.home() / ".cache/keras-strategies/horovod"


class TestTools:
    @pytest.mark.parametrize("toolbox", [{"make": ""}], indirect=True)
    def test_names_all_that_are_missing_and_their_packages(self, toolbox: str) -> None:
        with pytest.raises(
            recipe.InstallError, match=r"Not found on PATH: g\+\+, cmake\. .*apt-get install g\+\+ cmake"
        ):
            recipe.check_tools("gloo", path=toolbox)

    @pytest.mark.parametrize("toolbox", [ALL_TOOLS], indirect=True)
    def test_finds_those_that_are_there(self, toolbox: str) -> None:
        assert recipe.check_tools("mpi", path=toolbox)["g++"] == f"{toolbox}/g++"
        assert "mpicxx" not in recipe.check_tools("gloo", path=toolbox)

    @pytest.mark.parametrize("toolbox", [{k: v for k, v in ALL_TOOLS.items() if k != "mpicxx"}], indirect=True)
    def test_mpi_needs_its_compiler(self, toolbox: str) -> None:
        with pytest.raises(recipe.InstallError, match=r"mpicxx.*apt-get install libopenmpi-dev openmpi-bin"):
            recipe.check_tools("mpi", path=toolbox)

    @pytest.mark.parametrize(
        ("toolbox", "message"),
        [
            (ALL_TOOLS | {"cmake": "cmake version 3.10.2"}, r"cmake 3\.13 or newer. Received: 3\.10 "),
            (ALL_TOOLS | {"g++": "7.5.0"}, r"g\+\+ 8\.0 or newer. Received: 7\.5 "),
            (ALL_TOOLS | {"g++": "strange"}, r"Received: 'strange\\n'"),
        ],
        indirect=["toolbox"],
    )
    def test_refuses_old_ones(self, toolbox: str, message: str) -> None:
        with pytest.raises(recipe.InstallError, match=message):
            recipe.check_tools("gloo", path=toolbox)


class TestPython:
    def test_finds_tensorflow(self) -> None:
        assert recipe.check_python() == recipe.installed_version("tensorflow")

    @pytest.mark.parametrize(
        ("versions", "message"),
        [
            ({}, "Install it first: python -m pip install tensorflow"),
            ({"tensorflow": "2.21.0"}, r"install 'cloudpickle' .* 'setuptools>=65,<85' 'wheel'"),
            (
                dict.fromkeys(recipe.BUILD_PACKAGES, "85.0") | {"tensorflow": "2.21.0"},
                r"setuptools>=65,<85 \(is 85\.0\)\. Install them: python -m pip install 'setuptools>=65,<85'",
            ),
        ],
    )
    def test_says_how_to_mend(self, versions: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recipe, "installed_version", versions.get)
        with pytest.raises(recipe.InstallError, match=message):
            recipe.check_python()

    def test_the_extra_lists_the_same_packages(self) -> None:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        extra = project["optional-dependencies"]["horovod"]
        assert sorted(line.partition(">=")[0] for line in extra) == sorted(recipe.BUILD_PACKAGES)
        majors = recipe.SETUPTOOLS_MAJORS
        assert f"setuptools>={majors.start},<{majors.stop}" in extra


class TestEnvironment:
    def test_keeps_the_callers_but_not_what_steers_the_build(self) -> None:
        caller = {"HOME": "/h", "MAKEFLAGS": "-j --jobserver-auth=3,4", "HOROVOD_WITH_PYTORCH": "1"}
        environment = recipe.build_environment("gloo", "2.21.0", TOOLS, caller)
        assert environment["HOME"] == "/h"
        assert environment["HOROVOD_WITH_GLOO"] == environment["HOROVOD_WITHOUT_MPI"] == "1"
        assert "jobserver" not in environment["MAKEFLAGS"]
        assert "HOROVOD_WITH_PYTORCH" not in environment

    def test_headers_that_gcc_13_no_longer_includes_are_added_to_the_callers_flags(self) -> None:
        environment = recipe.build_environment("gloo", "2.21.0", TOOLS, {"CXXFLAGS": "-O2"})
        assert environment["CXXFLAGS"].startswith("-O2 -include ")
        assert "-include stdexcept" in environment["CXXFLAGS"]


class TestCache:
    def test_a_finished_wheel_is_used_again(self, tmp_path: Path) -> None:
        wheel = tmp_path / "horovod-1.whl"
        wheel.touch()
        assert install_horovod.cached_wheel(tmp_path, {}, force=False) == wheel

    def test_a_failed_build_leaves_its_log_and_nothing_that_looks_like_a_wheel(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A Python without pip fails in the first step, before anything is downloaded.
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho no pip here\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        kept = tmp_path / "kept"
        kept.mkdir()
        with pytest.raises(recipe.InstallError, match=r"(?s)no pip here.*pip download failed.*failed-build\.log"):
            install_horovod.cached_wheel(kept, os.environ, force=False)
        assert [path.name for path in kept.iterdir()] == ["failed-build.log"]

    def test_the_first_errors_of_the_compiler_are_shown_below_the_last_lines(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("\n".join(["a.h:3:18: error: no logic_error", *(f"line {i}" for i in range(40))]))
        shown = install_horovod._tail(log).splitlines()
        assert shown[-2:] == ["line 39", "a.h:3:18: error: no logic_error"]
        assert len(shown) == 31

    def test_a_successful_build_leaves_the_wheel_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def build(folder: Path, environment: object, log: Path, gpu: object) -> Path:
            log.write_text("much output")
            wheel = folder / "horovod-1.whl"
            wheel.write_text("built")
            return wheel

        monkeypatch.setattr(install_horovod, "build_wheel", build)
        (tmp_path / "horovod-1.whl").write_text("old")
        wheel = install_horovod.cached_wheel(tmp_path, {}, force=True)
        assert wheel.read_text() == "built"
        assert list(tmp_path.iterdir()) == [wheel]


class TestProcesses:
    def test_a_second_run_waits_for_the_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        order = []

        def second() -> None:
            with install_horovod._locked(tmp_path):
                order.append("second")

        with install_horovod._locked(tmp_path):
            thread = threading.Thread(target=second, daemon=True)
            thread.start()
            while "waiting for it" not in capsys.readouterr().out:
                thread.join(timeout=0.01)
                assert thread.is_alive()
            order.append("first")
        thread.join(timeout=100)
        assert order == ["first", "second"]

    def test_what_a_command_leaves_running_ends_with_it(self, tmp_path: Path) -> None:
        child = tmp_path / "child"
        command = ["sh", "-c", f"sleep 1000 & echo $! > {child}; exit 3"]
        assert install_horovod._run(command, os.environ, tmp_path / "log") == 3
        # The killed child belongs to init now, which reaps it at some later time.
        deadline = time.monotonic() + 100
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(int(child.read_text())).status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                time.sleep(0.05)


class TestMain:
    def test_does_nothing_when_the_same_is_installed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        installed = f"{recipe.HOROVOD_VERSION}+{recipe.local_version('2.21.0', 'gloo')}"
        monkeypatch.setattr(install_horovod, "check_python", lambda: "2.21.0")
        monkeypatch.setattr(install_horovod, "installed_version", {"horovod": installed}.get)
        install_horovod.main([])
        assert capsys.readouterr().out == f"Horovod {installed} is installed already. Nothing to do.\n"

    def test_missing_tools_end_it_with_the_message(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(install_horovod, "check_python", lambda: "2.21.0")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SystemExit, match=r"^install_horovod: Building Horovod needs"):
            install_horovod.main(["--mpi", "--force"])


def test_builds_with_an_environment_whose_path_has_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = tmp_path / "an environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").touch()
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python"))
    folder = tmp_path / "build"
    folder.mkdir()
    python = Path(install_horovod.interpreter_without_spaces(folder))
    assert " " not in str(python)
    assert python.samefile(environment / "bin" / "python")


def test_builds_with_the_interpreter_itself_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/no/spaces")
    assert install_horovod.interpreter_without_spaces(tmp_path) == sys.executable
    assert not list(tmp_path.iterdir())
