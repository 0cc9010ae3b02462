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

import tensorflow as tf

from strategies.doctoring.addresses import check_addresses
from strategies.doctoring.exchange import exchange, run_exchange
from strategies.doctoring.machine import LAUNCH, check_machine
from strategies.doctoring.report import Report
from strategies.doctoring.software import check_horovod, check_versions
from strategies.topology.cluster import Cluster
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
    if flags.exchange:
        return run_exchange(flags)
    report = Report(as_json=flags.json)
    cluster = None
    try:
        cluster = Cluster.from_environment()
        report.rank = cluster.rank
    except ValueError as error:
        report.problem(str(error))
    check_machine(cluster or Cluster(), report)
    if report.rank == 0:
        check_versions(report)
        check_horovod(report)
    if cluster is not None:
        names = ("source", "rank", "world_size", "local_size", "addresses")
        report.section("processes", {name: getattr(cluster, name) for name in names})
        if cluster.world_size == 1:
            report.section("logical devices", {"local": [device.name for device in tf.config.list_logical_devices()]})
            report.hint(f"this is a single process. To measure the bandwidth between two: {LAUNCH}")
        elif check_addresses(cluster, report):
            exchange(cluster, report, flags)
    return report.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m strategies.doctor", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--max-mb", type=_positive, default=100.0, metavar="MB", help="the largest tensor to reduce; default 100")
    add("--mesh", type=_axes, metavar="AXES", help="the mesh of the program, as in data=1,pipe=2,tensor=2")
    add("--json", action="store_true", help="one line of JSON per rank")
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
