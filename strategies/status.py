"""Shows a running job: ``python -m strategies.status HOST:PORT``, at the address that its launcher prints.

    python -m strategies.launch --nproc-per-node 4 --status-port 8642 train.py
    python -m strategies.status 127.0.0.1:8642

On a terminal it shows a page that is renewed in place twice a second, until the job ends or Ctrl-C; with --once, or if
its output is no terminal, the status at this moment. With --json and --prometheus it prints what /status.json and
/metrics have. With --trace 5 all ranks record five of their next steps, as one timeline. The token of a job that is
watched from other machines comes from STRATEGIES_STATUS_TOKEN, --token-file or --token, which other users of this
machine can see. The exit code is 0; 1 if nobody answers, or refuses, or if the
trace of a rank is missing.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from strategies.command_line import Parser
from strategies.monitoring.client import Client, ClientError, ClosedError, GoneError
from strategies.monitoring.settings import TOKEN_VARIABLE, check_token, token_of
from strategies.monitoring.terminal import printable, terminal_lines
from strategies.tracing.job_trace import JobTrace

_SECONDS_BETWEEN_PAGES = 0.5
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR = "\x1b[2J"


def main(argv: Sequence[str] | None = None) -> int:
    """Shows the status of a job, and returns the exit code.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for an invalid command line.
    """
    flags = _parser().parse_args(argv)
    try:
        client = Client(flags.address, _token(flags))
        if flags.json:
            print(client.read("/status.json"))
        elif flags.prometheus:
            print(client.read("/metrics"), end="")
        elif flags.trace is not None:
            return _trace(client, flags.trace, flags.output)
        elif flags.once or not sys.stdout.isatty():
            print("\n".join(terminal_lines(client.status())))
        else:
            _show(client, sys.stdout)
    except (ClientError, OSError, ValueError) as error:
        print(f"strategies.status: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Ctrl-C is how one stops to look.
        return 0
    return 0


def _trace(client: Client, num_steps: int, output: Path) -> int:
    """Has all ranks record a few steps, writes the timeline, and prints its summary; returns the exit code.

    Raises:
        ClientError: the server does not answer, or cannot request a trace now.
    """
    print(f"Waiting for {num_steps} steps of each rank.", file=sys.stderr)
    trace = client.trace(num_steps)
    for rank, reason in sorted(trace.errors.items()):
        print(f"strategies.status: rank {rank} sent no record: {printable(reason)}", file=sys.stderr)
    if not trace.events:
        return 1
    timeline = JobTrace.from_texts(trace.events.values())
    timeline.write(output)
    print(f"{timeline}\nWrote {output}; open it at https://ui.perfetto.dev.")
    return 1 if trace.errors else 0


def _show(client: Client, output: TextIO, sleep: Callable[[float], None] = time.sleep) -> None:
    """Renews the page on a terminal until the job ends.

    Raises:
        ClientError: nobody answers from the beginning, or the server refuses.
    """
    lines = terminal_lines(client.status())
    output.write(_CLEAR)
    while True:
        page = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
        output.write(f"{_HOME}{page}{_CLEAR_BELOW}")
        output.flush()
        sleep(_SECONDS_BETWEEN_PAGES)
        try:
            lines = terminal_lines(client.status())
        except (GoneError, ClosedError):
            # Through a tunnel, as of ssh, the connection to a job that has ended is made, and closed at once.
            output.write("The job has ended.\n")
            return


def _token(flags: argparse.Namespace) -> str:
    """Returns the token of the command line or the environment.

    Raises:
        OSError: its file cannot be read.
        ValueError: it cannot be read or used.
    """
    if flags.token_file is not None:
        token = Path(flags.token_file).read_text().strip()
    else:
        token = flags.token.strip() or token_of(os.environ)
    check_token(token)
    return token


def _parser() -> argparse.ArgumentParser:
    parser = Parser("status", "HOST:PORT")
    add = parser.add_argument
    add("address", metavar="HOST:PORT", help="the address that the launcher prints")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--once", action="store_true", help="show the status of this moment, and end")
    shown.add_argument("--json", action="store_true", help="print it as JSON, and end")
    shown.add_argument("--prometheus", action="store_true", help="print it in Prometheus' text format, and end")
    shown.add_argument(
        "--trace", metavar="STEPS", type=int, help="record some steps of all ranks as one timeline, and end"
    )
    add("--output", metavar="FILE", type=Path, default=Path("timeline.json"), help="the timeline (timeline.json)")
    add("--token", default="", help=f"the job's token; other users can see it: better use {TOKEN_VARIABLE}")
    add("--token-file", metavar="PATH", help="a file with the token, such as the launcher names")
    return parser


if __name__ == "__main__":
    sys.exit(main())
