"""The command-line tools of this package: one table of all, and the parser that they share.

Standard library only: `--help` and the report of a wrong flag need no TensorFlow, whose import takes seconds. Each tool
is a module, and pyproject.toml makes each a console script: ``strategies-launch`` is ``python -m strategies.launch``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command-line tool.

    Attributes:
        summary: its purpose, in one sentence.
        example: arguments that show its common use.
    """

    summary: str
    example: str


#: The tools by the name of their module, in the order in which a new user meets them.
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "launch": Command("Starts a program several times, as the ranks of one job.", "--nproc-per-node 2 train.py"),
        "doctor": Command("Reports on software, devices, ranks and the bandwidth between them.", "--max-mb 10"),
        "plan": Command(
            "Finds the mesh on which a model trains fastest on given GPUs, and whether it fits.",
            "--layers=32 --hidden=4096 --heads=32 --batch=512 --gpus=8",
        ),
        "status": Command("Shows a running job, at the address that its launcher prints.", "127.0.0.1:8642"),
        "convert": Command(
            "Converts files of weights into each other, and lists their tensors.",
            "run/checkpoints model.weights.h5",
        ),
        "install_horovod": Command(
            "Builds Horovod against the installed TensorFlow and installs it.", "--wheel-dir wheels"
        ),
    }
)


def script_name(name: str) -> str:
    """Returns the console script of a tool: "strategies-install-horovod" for "install_horovod"."""
    return f"strategies-{name.replace('_', '-')}"


class Parser(argparse.ArgumentParser):
    """The parser of a tool: `--help` fits one screen and ends with an example; `--help-all` shows every flag.

    The usage names the tool as it was started, as a console script or as a module.

    Args:
        name: the tool's name in `COMMANDS`.
        arguments: the arguments after the flags in the usage, as in "SCRIPT ...".
        notes: a sentence before the example.
    """

    def __init__(self, name: str, arguments: str = "", notes: str = "") -> None:
        command = COMMANDS[name]
        script = script_name(name)
        program = script if Path(sys.argv[0]).name == script else f"python -m strategies.{name}"
        super().__init__(
            prog=program,
            usage=f"%(prog)s [flags] {arguments}".rstrip(),
            description=command.summary,
            epilog="\n".join(filter(None, [notes, f"example: {program} {command.example}"])),
            formatter_class=_Formatter,
            # An abbreviation could become ambiguous with a later flag.
            allow_abbrev=False,
        )
        self._rare: list[tuple[argparse.Action, str | None]] = []

    def add_rare(self, add: Callable[..., argparse.Action], *names: str, **settings: Any) -> None:
        """Adds an argument that only `--help-all` shows.

        Args:
            add: `add_argument` of this parser or of one of its groups.
            names: the names of the flag.
            settings: see `argparse.ArgumentParser.add_argument`.
        """
        if not self._rare:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags, and exit")
        action = add(*names, **settings)
        self._rare.append((action, action.help))
        action.help = argparse.SUPPRESS

    def show_rare(self) -> None:
        """Shows the rare arguments in the help from now on."""
        for action, text in self._rare:
            action.help = text


class _HelpAll(argparse.Action):
    """Prints the help with all flags, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if isinstance(parser, Parser):
            parser.show_rare()
        parser.print_help()
        parser.exit()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Leaves a column of 26 for the flags: one line for most of them."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)
