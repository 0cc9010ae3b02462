"""Runs exchanges between the ranks in a child process, and reports their bandwidth."""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import subprocess
import sys
from typing import Any

import strategies
from strategies.doctoring.addresses import connect, in_parallel
from strategies.doctoring.axes import make_devices, measure_axes
from strategies.doctoring.rates import measure
from strategies.doctoring.report import Report
from strategies.topology.cluster import Cluster


def exchange(cluster: Cluster, report: Report, flags: argparse.Namespace) -> None:
    """Connects to the other ranks and reduces tensors with them, in a child process.

    TensorFlow blocks the interpreter while it waits for other processes, and may abort it if they fail.
    """
    strategy = "HorovodStrategy" if cluster.source in ("HOROVOD", "OMPI") else "MultiWorkerMirroredStrategy"
    seconds = flags.timeout_seconds
    command = [sys.executable, "-m", "strategies.doctor", "--exchange", strategy]
    command += ["--max-mb", str(flags.max_mb), "--timeout-seconds", str(seconds)]
    if flags.mesh:
        command += ["--mesh", ",".join(f"{axis}={size}" for axis, size in flags.mesh.items())]
    # If a launcher terminates this process, end the child, too: also if the child is just starting.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    silent: dict[str, str] | None = None
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        try:
            signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
            if asked:
                sys.exit(128 + asked[0])
            output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            others = [address for rank, address in enumerate(cluster.addresses) if rank != cluster.rank]
            silent = in_parallel(connect, others, 4.0)
            child.kill()
            output, _ = child.communicate()
        finally:
            child.kill()
    results: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            results |= json.loads(line)
    if "devices" in results:
        report.section("logical devices", {"local": results["devices"]})
    who = f"rank {cluster.rank} of {cluster.world_size}, {strategy}"
    doing = "the all-reduce of tensors" if "devices" in results else "the connection to the other processes"
    if silent is not None:
        missing = "; ".join(f"rank {cluster.addresses.index(a)} at {a} ({why})" for a, why in silent.items())
        report.problem(
            f"{who}: {doing} was not complete after {seconds:g} s. "
            f"{f'No answer from {missing}. ' if missing else ''}Start all ranks with the same command, at the same "
            f"time, and open their ports in the firewall; or wait longer: --timeout-seconds."
        )
    elif "problem" in results or child.returncode:
        why = results.get("problem", f"exit code {child.returncode}; see its output above")
        report.problem(f"{who}: {doing} failed: {why}")
    else:
        report.section("all-reduce", {"by": strategy, **results["rates"]})
        if "axes" in results:
            report.section("mesh axes", results["axes"])


def run_exchange(flags: argparse.Namespace) -> int:
    """Runs the exchanges, in the child process, and prints results as lines of JSON; returns the exit code."""
    # Ends this process if the parent is gone.
    faulthandler.dump_traceback_later(flags.timeout_seconds + 30, exit=True)
    try:
        if flags.mesh:
            make_devices(flags.mesh, Cluster.from_environment().world_size)
        strategy = getattr(strategies, flags.exchange)(mesh=flags.mesh)
        print(json.dumps({"devices": list(strategy.extended.worker_devices)}), flush=True)
        print(json.dumps({"rates": measure(strategy, flags.max_mb)}), flush=True)
        if flags.mesh:
            print(json.dumps({"axes": measure_axes(strategy.extended.engine.parts.groups, flags.max_mb)}), flush=True)
    except Exception as error:
        # Any error is reported as a problem in words.
        print(json.dumps({"problem": str(error).strip() or type(error).__name__}), flush=True)
        return 1
    return 0
