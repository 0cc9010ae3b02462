"""All checks of the doctor, in their order. tests/strategies/test_doctor.py runs them."""

from __future__ import annotations

import argparse

import tensorflow as tf

from strategies.doctoring.addresses import check_addresses
from strategies.doctoring.exchange import exchange
from strategies.doctoring.machine import LAUNCH, check_machine
from strategies.doctoring.report import Report
from strategies.doctoring.software import check_horovod, check_versions
from strategies.topology.cluster import Cluster


def run_checks(flags: argparse.Namespace) -> int:
    """Runs all checks, prints the report and returns the exit code: 1 if there is a problem.

    Args:
        flags: the parsed flags of `strategies.doctor`.
    """
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
