"""Every command in the pages that starts an example is accepted by the launchers' parsers and the program's flags.

A command is a line of a code block, or code in a sentence, that names a program in `examples/` and begins like one that
starts it. A backslash continues a line. Nothing is run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from strategies.launching import flags as launcher_flags
from tests.examples import EXAMPLES
from tests.processes import python

ROOT = EXAMPLES.parent
PROGRAM = re.compile(r"examples/\w+/\w+\.py")


def commands_in(page: str) -> list[str]:
    """Returns the commands of a Markdown page, one per line, without prompts and comments."""
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", page, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    sentences = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`([^`\n]+)`", sentences)
    found = [" ".join(line.removeprefix("$ ").split()) for line in lines]
    # A program's name alone is not a command; nor is a comment, or a line of a diff.
    return [line for line in found if PROGRAM.search(line) and " " in line and not line.startswith(("#", "+", "-"))]


def pages() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.md")):
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts):
            yield path


COMMANDS = sorted({(str(page.relative_to(ROOT)), line) for page in pages() for line in commands_in(page.read_text())})


class CommandError(ValueError):
    """A command that would not start."""


def program_and_flags(command: str) -> tuple[str, list[str]]:
    """Returns the program that a command starts in the end, and its arguments.

    Raises:
        CommandError: a launcher rejects its arguments, or there is no such program.
    """
    # A shell variable, such as a node's rank, is a number or a name.
    words = shlex.split(re.sub(r"\$\{?\w+\}?", "0", command), comments=True)
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    while words and (after := LAUNCHERS.get(words[0])):
        words = after(words[1:])
    if not words or not PROGRAM.fullmatch(words[0]) or not (ROOT / words[0]).is_file():
        raise CommandError(f"there is no such program: {words[:1]}")
    return words[0], words[1:]


def _python(words: Sequence[str]) -> list[str]:
    if list(words[:2]) != ["-m", "strategies.launch"]:
        return list(words)
    flags = _parsed(launcher_flags.parser(), words[2:])
    if (flags.nnodes or 1) > 1 and (flags.node_rank is None or flags.master_addr is None):
        raise CommandError("several nodes, and no --node-rank or no --master-addr")
    return [flags.script, *flags.script_args]


def _horovodrun(words: Sequence[str]) -> list[str]:
    """Parses with horovodrun's own parser, which reads the command line of its process."""
    with warnings.catch_warnings():
        # It imports distutils, of which Python 3.11 warns on the first import.
        warnings.simplefilter("ignore", DeprecationWarning)
        from horovod.runner.launch import parse_args

    with mock.patch.object(sys, "argv", ["horovodrun", *words]):
        return list(_telling(parse_args).command)


def _elsewhere(*options: str) -> Callable[[Sequence[str]], list[str]]:
    """Returns a parser for a launcher that is not installed here, with its documented options that pages use."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in options:
        parser.add_argument(*option.split("|"), required=False)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return lambda words: list(_parsed(parser, words).command)


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    parsed: argparse.Namespace = _telling(lambda: parser.parse_args(list(words)))
    return parsed


def _telling(parse: Callable[[], Any]) -> Any:
    """Returns what `parse` returns; if it exits instead, raises `CommandError` with what it wrote to stderr."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as error:
        raise CommandError(said.getvalue()) from error


def _container(words: Sequence[str]) -> list[str]:
    """Returns the command after the image of `docker run`."""
    images = [i for i, word in enumerate(words) if word.startswith("keras-strategies:")]
    if not images:
        raise CommandError("no image of this package")
    return list(words[images[0] + 1 :])


LAUNCHERS = {
    "docker": _container,
    "python": _python,
    "strategies-launch": lambda words: _python(["-m", "strategies.launch", *words]),
    "horovodrun": _horovodrun,
    "srun": _elsewhere(
        "--nodes|-N",
        "--ntasks|-n",
        "--ntasks-per-node",
        "--cpus-per-task|-c",
        "--gpus-per-task",
        "--kill-on-bad-exit|-K",
    ),
    "mpirun": _elsewhere("-np|-n", "-H|--host", "--hostfile", "--bind-to"),
}


def refusals(program: str, lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the error of the program's own flags for each of the command lines: empty if they accept it."""
    example, name = Path(program).parent.name, Path(program).stem
    code = (
        "import importlib, json, sys; from absl import flags; "
        f"module = importlib.import_module('{example}.{name}')\n"
        # Some programs define their flags only when they start.
        "getattr(module, 'define_flags', lambda: None)()\n"
        "for line in json.load(sys.stdin):\n"
        "    flags.FLAGS.unparse_flags()\n"
        "    said = ''\n"
        "    try:\n"
        "        rest = flags.FLAGS(['program', *line])[1:]\n"
        "        said = f'not understood: {rest}' if rest else ''\n"
        "    except flags.Error as error:\n"
        "        said = str(error)\n"
        "    print('said', json.dumps(said))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), str(ROOT)])}
    done = subprocess.run(
        python("-c", code),
        input=json.dumps(list(lines)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("said ")]


def test_commands_on_pages_are_taken() -> None:
    wrong, parsed = [], []
    for page, command in COMMANDS:
        try:
            parsed.append((*program_and_flags(command), f"{page}: {command}"))
        except CommandError as error:
            wrong.append(f"{page}: {command}\n    {error}")
    for program, of_program in itertools.groupby(sorted(parsed), key=lambda each: each[0]):
        lines = list(of_program)
        said = refusals(program, [flags for _, flags, _ in lines])
        wrong += [f"{where}\n    {what}" for (_, _, where), what in zip(lines, said, strict=True) if what]
    assert not wrong, "\n".join(wrong)


def test_there_are_commands_for_every_example() -> None:
    """Each page of an example shows how to start it."""
    shown = {PROGRAM.findall(command)[0] for page, command in COMMANDS if page.startswith("examples/")}
    for page in EXAMPLES.glob("*/README.md"):
        assert any(program.startswith(f"examples/{page.parent.name}/") for program in shown), page


def test_finds_commands() -> None:
    page = "\n".join(
        [
            "Run `python examples/gpt/main.py --seed=1`, see `examples/gpt/main.py`.",
            "```console",
            "$ srun --nodes 4 \\",
            "    python examples/gpt/main.py --strategy=multi_worker",
            "result perplexity=1.0",
            "```",
            "```sh",
            "# python examples/gpt/main.py",
            "python -m other",
            "```",
        ]
    )
    assert commands_in(page) == [
        "srun --nodes 4 python examples/gpt/main.py --strategy=multi_worker",
        "python examples/gpt/main.py --seed=1",
    ]


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("CUDA_VISIBLE_DEVICES=-1 python examples/gpt/main.py --a", ["--a"]),
        ("python -m strategies.launch --nnodes 4 --node-rank $RANK --master-addr a examples/gpt/main.py --a", ["--a"]),
        ("horovodrun -np 8 -H host1:4,host2:4 python examples/gpt/main.py --seed=b", ["--seed=b"]),
        ("srun --ntasks-per-node=8 python examples/gpt/main.py", []),
    ],
)
def test_parses_launchers(command: str, flags: list[str]) -> None:
    assert program_and_flags(command) == ("examples/gpt/main.py", flags)


@pytest.mark.parametrize(
    "command",
    [
        "python examples/gpt/nothing.py",
        "python -m strategies.launch --nprocs 4 examples/gpt/main.py",
        "python -m strategies.launch --nnodes 4 --master-addr a examples/gpt/main.py",
        "python -m strategies.launch --nnodes 4 --node-rank 0 examples/gpt/main.py",
        "horovodrun --processes 8 python examples/gpt/main.py",
        "srun --gpu 8 python examples/gpt/main.py",
    ],
)
def test_refuses_what_launchers_do_not_take(command: str) -> None:
    with pytest.raises(CommandError):
        program_and_flags(command)


def test_refuses_what_programs_do_not_take() -> None:
    lines = [["--seed=1"], ["--seed=one"], ["--sede=1"], ["seed"], ["--noprofile"], ["--mesh", "data=2"]]
    said = refusals("examples/gpt/main.py", lines)
    assert [bool(what) for what in said] == [False, True, True, True, False, False]
