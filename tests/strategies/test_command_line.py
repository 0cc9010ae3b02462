"""Every console script has a help of one screen, with an example that it takes; `python -m strategies` lists all."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strategies
from strategies import __main__ as listing
from strategies.command_line import COMMANDS, Parser, script_name
from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS: dict[str, str] = PROJECT["scripts"]
#: A screen; most terminals have more columns than lines.
LINES, COLUMNS = 40, 100

scripts = pytest.mark.parametrize("script", sorted(SCRIPTS))


def module_of(script: str) -> str:
    return SCRIPTS[script].partition(":")[0]


def main_of(script: str) -> Callable[[list[str]], Any]:
    module, _, name = SCRIPTS[script].partition(":")
    main: Callable[[list[str]], Any] = getattr(importlib.import_module(module), name)
    return main


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns a function that returns the help of a console script, started under its name."""

    def run(script: str, flag: str = "--help") -> str:
        monkeypatch.setenv("COLUMNS", str(COLUMNS))
        monkeypatch.setattr(sys, "argv", [f"/somewhere/bin/{script}"])
        with pytest.raises(SystemExit) as ended:
            main_of(script)([flag])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def test_every_tool_is_a_console_script() -> None:
    assert {script_name(name): f"strategies.{name}:main" for name in COMMANDS} == SCRIPTS
    programs = {path.stem for path in (ROOT / "strategies").glob("[!_]*.py") if "__main__" in path.read_text()}
    assert programs == set(COMMANDS)


@scripts
def test_help_fits_a_screen_and_has_an_example(script: str, helped: Callable[..., str]) -> None:
    text = helped(script)
    lines = text.splitlines()
    assert len(lines) <= LINES, text
    assert max(map(len, lines)) <= COLUMNS, text
    assert lines[0].startswith(f"usage: {script} "), text
    assert sum(line.startswith(f"example: {script} ") for line in lines) == 1, text


@pytest.mark.parametrize("script", ["strategies-launch", "strategies-plan"])
def test_the_help_of_all_flags_has_those_of_the_short_one(script: str, helped: Callable[..., str]) -> None:
    short = helped(script)
    flags = [set(re.findall(r"^ +(--[\w-]+)", text, re.MULTILINE)) for text in (short, helped(script, "--help-all"))]
    assert flags[0] < flags[1]
    # Shown once asked for; the next parser is short again.
    assert helped(script) == short


@scripts
def test_the_example_is_taken(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module_of(script).rpartition(".")[2]
    taken: list[Parser] = []

    def take(parser: Parser, argv: list[str]) -> None:
        taken.append(parser)
        sys.exit(0)

    monkeypatch.setattr(Parser, "parse_args", take)
    with pytest.raises(SystemExit):
        main_of(script)([])
    monkeypatch.undo()
    [parser] = taken
    parser.parse_args(shlex.split(COMMANDS[name].example))


def test_a_module_names_itself_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/strategies/launch.py"])
    assert Parser("launch").prog == "python -m strategies.launch"


def test_the_list_has_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES
    for name, command in COMMANDS.items():
        assert f"{script_name(name)}: {command.summary}" in lines
        assert f"    {script_name(name)} {command.example}" in lines
        assert command.summary.endswith(".")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        listing.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"keras-strategies {strategies.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", strategies.__version__)


def test_help_needs_no_tensorflow() -> None:
    modules = sorted({module_of(script) for script in SCRIPTS} | {"strategies.__main__"})
    program = (
        "import contextlib, importlib, os, sys\n"
        f"for name in {modules}:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')):\n"
        "        importlib.import_module(name).main(['--help'])\n"
        "print(sorted({'keras', 'tensorflow'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(("argument", "message"), [("doctor", "run strategies-doctor, or"), ("foo", "unrecognized")])
def test_the_list_starts_no_tool(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        listing.main([argument, "--help-all"])
    assert message in capsys.readouterr().err
