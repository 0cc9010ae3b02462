"""The wheel has what it needs and nothing else: it is built here, from what is or would be committed."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import strategies
from strategies.command_line import COMMANDS, script_name
from tests.release.building import build_wheel
from tests.release.contents import console_scripts_of, metadata_of, wheel_problems


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("built"))


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    assert not wheel_problems(wheel)


def test_a_file_too_many_or_too_few_is_found(wheel: Path, tmp_path: Path) -> None:
    changed = tmp_path / wheel.name
    shutil.copy(wheel, changed)
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("tests/test_x.py", "")
        archive.writestr("strategies/weights.bin", "")
    assert wheel_problems(changed) == [
        "should not have strategies/weights.bin",
        "should not have tests/test_x.py",
        "is of no known kind: strategies/weights.bin",
    ]
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in whole.namelist():
            if not name.endswith(("py.typed", "LICENSE")):
                archive.writestr(name, whole.read(name))
    assert wheel_problems(changed) == ["lacks keras_ext/py.typed", "lacks strategies/py.typed", "lacks LICENSE"]


def test_the_metadata(wheel: Path) -> None:
    found = metadata_of(wheel)
    assert (found["Name"], found["Version"]) == ("keras-strategies", strategies.__version__)
    assert found["License-Expression"] == "Apache-2.0"
    assert {"docs", "examples", "gpu", "horovod", "hub"} <= set(found.get_all("Provides-Extra", []))
    assert {"strategies", "keras_ext"} == {name.partition("/")[0] for name in _top_level(wheel)}


def test_the_console_scripts(wheel: Path) -> None:
    assert console_scripts_of(wheel) == {script_name(name): f"strategies.{name}:main" for name in COMMANDS}


def _top_level(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]
