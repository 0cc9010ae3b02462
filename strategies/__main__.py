"""Lists the command-line tools: ``python -m strategies``. Standard library only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import strategies
from strategies.command_line import COMMANDS, script_name


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the list, or the version; returns the exit code.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for an invalid command line; with 0 after the help or the version.
    """
    parser = argparse.ArgumentParser(
        prog="python -m strategies",
        description="Lists the command-line tools of keras-strategies.",
        epilog="example: python -m strategies",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keras-strategies {strategies.__version__}")
    _, others = parser.parse_known_args(argv)
    if others and others[0] in COMMANDS:
        parser.error(f"this only lists the tools; run {script_name(others[0])}, or python -m strategies.{others[0]}")
    parser.parse_args(argv)
    print(listed())
    return 0


def listed() -> str:
    """Returns the list of tools, each with its purpose and an example."""
    lines = [
        f"keras-strategies {strategies.__version__}: distributed training for Keras 3 on TensorFlow.",
        "Each tool explains its flags with --help. strategies-launch is also python -m strategies.launch, and so on.",
    ]
    for name, command in COMMANDS.items():
        script = script_name(name)
        lines += ["", f"{script}: {command.summary}", f"    {script} {command.example}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
