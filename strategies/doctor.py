"""Reports on software, devices, ranks and the bandwidth between them: ``python -m strategies.doctor``.

    python -m strategies.doctor
    python -m strategies.launch --nproc-per-node 2 -m strategies.doctor
    horovodrun -np 4 python -m strategies.doctor --mesh data=1,pipe=2,tensor=2

Start it in the same way as the program that does not start or is slow. Rank 0 prints the report; every other rank
prints one line about itself, and its problems. Each problem is printed with its remedy, and the exit code is then 1.
With the program's --mesh, the report has latency and GB/s along each axis that crosses processes. The wait for other
ranks is limited by --timeout-seconds.
"""

import argparse
import sys
from collections.abc import Sequence

from strategies.command_line import Parser
from strategies.topology.mesh import DeviceMesh

_STRATEGIES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all checks, prints the report and returns the exit code: 1 if there is a problem.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for invalid flags.
    """
    flags = _parser().parse_args(argv)
    # TensorFlow takes seconds to import: the help, and the report of a wrong flag, do not wait for it.
    from strategies.doctoring.checks import run_checks
    from strategies.doctoring.exchange import run_exchange

    return run_exchange(flags) if flags.exchange else run_checks(flags)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "doctor",
        notes="In place of a program of several ranks: strategies-launch --nproc-per-node 2 -m strategies.doctor",
    )
    add = parser.add_argument
    add("--max-mb", type=_positive, default=100.0, metavar="MB", help="the largest tensor to reduce; default 100")
    add("--mesh", type=_axes, metavar="AXES", help="the mesh of the program, as in data=1,pipe=2,tensor=2")
    add("--json", action="store_true", help="print one line of JSON per rank")
    add(
        "--timeout-seconds",
        type=_positive,
        default=180.0,
        metavar="S",
        help="limit of the wait for other ranks; default 180",
    )
    add("--exchange", choices=_STRATEGIES, help=argparse.SUPPRESS)
    return parser


def _axes(text: str) -> dict[str, int]:
    try:
        return DeviceMesh.axes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number above 0. Received: {text!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
