"""The launcher's command line, with torchrun's flags. Standard library only."""

import argparse
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strategies.command_line import Parser
from strategies.launching.environment import check_single_launcher, num_processes
from strategies.launching.gpu_picking import pick_gpus
from strategies.launching.job_description import JobDescription
from strategies.monitoring.settings import LOOPBACK, PORT_VARIABLE, TOKEN_VARIABLE, StatusSettings

#: The address of node 0 on a single node, and its default port on several nodes.
MASTER_ADDR = "127.0.0.1"
MASTER_PORT = 29500
# Heartbeats are one second apart, and a launcher may be busy for a moment.
_LEAST_NODE_TIMEOUT_SECONDS = 5.0


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the flags of a command line after checking that they fit together; None means that of this process.

    Raises:
        SystemExit: with 2, for an invalid command line or environment.
    """
    commands = parser()
    flags = commands.parse_args(argv)
    try:
        check_single_launcher(os.environ)
        description = JobDescription.from_environment(os.environ)
    except ValueError as error:
        commands.error(str(error))
    _complete(flags, description, commands)
    environment: Mapping[str, str] = os.environ
    flags.visible_gpus = None
    if flags.pick_gpus is not None:
        try:
            flags.visible_gpus = pick_gpus(flags.pick_gpus, os.environ)
        except ValueError as error:
            commands.error(f"argument --pick-gpus: {error}")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": flags.visible_gpus}
    try:
        flags.nproc_per_node = num_processes(flags.nproc_per_node, environment)
    except ValueError as error:
        commands.error(f"argument --nproc-per-node: {error}")
    if flags.nnodes > 1:
        if flags.standalone:
            commands.error(f"--standalone means a single node. Received: --nnodes {flags.nnodes}")
        if flags.node_rank is None:
            commands.error(
                f"--nnodes {flags.nnodes} needs --node-rank, 0 to {flags.nnodes - 1}, different on each node"
            )
        if flags.master_addr is None:
            commands.error(
                f"--nnodes {flags.nnodes} needs --master-addr, the address of node 0, the same on all nodes: one that "
                f"the others reach, not 127.0.0.1 unless all run on one machine"
            )
    if flags.node_rank is not None and not 0 <= flags.node_rank < flags.nnodes:
        commands.error(
            f"--node-rank must be between 0 and {flags.nnodes - 1} with --nnodes {flags.nnodes}. Received: "
            f"{flags.node_rank}"
        )
    if flags.nnodes == 1 and flags.min_procs is not None and flags.min_procs > flags.nproc_per_node:
        commands.error(
            f"--min-procs must not exceed the number of processes, {flags.nproc_per_node}. Received: {flags.min_procs}"
        )
    try:
        flags.status = StatusSettings.from_environment(os.environ, flags.status_port, flags.status_host)
    except ValueError as error:
        commands.error(str(error))
    if flags.module and flags.no_python:
        commands.error("--module and --no-python exclude each other")
    if flags.no_python and shutil.which(flags.script) is None:
        commands.error(f"there is no such command, or it is not executable. Received: {flags.script!r}")
    if not flags.no_python and not flags.module and not Path(flags.script).is_file():
        commands.error(
            f"there is no such file. Expected the path of a script, a module's name after --module, or another command "
            f"after --no-python. Received: {flags.script!r}"
        )
    return flags


def _complete(flags: argparse.Namespace, description: JobDescription, commands: argparse.ArgumentParser) -> None:
    """Fills in the flags that the command line does not give: from the platform's description, else the defaults."""

    def fill(name: str, convert: Callable[[str], Any]) -> None:
        value = getattr(description, name)
        if getattr(flags, name) is not None or value is None:
            return
        try:
            setattr(flags, name, convert(value))
        except argparse.ArgumentTypeError as error:
            flag = "--" + name.replace("_", "-")
            commands.error(f"argument {flag}, whose default is from the environment ({description.source}): {error}")

    fill("nproc_per_node", str)
    flags.nproc_per_node = flags.nproc_per_node or "1"
    has_count = flags.nnodes is not None
    if not flags.standalone:
        fill("nnodes", _nodes)
    flags.nnodes = flags.nnodes or 1
    if flags.nnodes > 1:
        # On a single node the ranks connect over the loopback interface, at free ports.
        fill("node_rank", _count)
        fill("master_addr", str)
        fill("master_port", _port)
    #: The variables that describe the nodes, if the command line does not.
    flags.described_by = description.source if flags.nnodes > 1 and not has_count else ""


def parser() -> argparse.ArgumentParser:
    """Returns the parser, which checks each flag on its own."""
    commands = Parser("launch", "script ...", "Everything after the script belongs to the script.")
    node, several, failures, watching = (
        commands.add_argument_group(title)
        for title in ("processes of this node", "several nodes", "failures", "watching a job")
    )

    def add(group: Any, name: str, *, is_rare: bool = False, **settings: Any) -> None:
        if is_rare:
            commands.add_rare(group.add_argument, name, **settings)
        else:
            group.add_argument(name, **settings)
        other = "--" + name[2:].replace("-", "_")
        if other != name:
            # torchrun accepts both spellings.
            without = {key: value for key, value in settings.items() if key not in ("default", "help", "required")}
            group.add_argument(other, dest=other[2:], default=argparse.SUPPRESS, help=argparse.SUPPRESS, **without)

    add(
        node,
        "--nproc-per-node",
        metavar="N",
        help="processes: a number, cpu (one per core), gpu, or auto (GPUs if any, else cores); default 1",
    )
    add(
        node,
        "--pick-gpus",
        type=_positive_count,
        metavar="N",
        help="use N GPUs of this node that nobody uses, by the memory in use, and leave out broken ones; sets "
        "CUDA_VISIBLE_DEVICES, and each process takes its share",
    )
    add(node, "--no-pin", is_rare=True, action="store_true", help="do not pin the processes to cores")
    add(
        node,
        "--no-python",
        is_rare=True,
        action="store_true",
        help="the script is an executable command, not a Python file",
    )
    node.add_argument("-m", "--module", action="store_true", help="the script is the name of a module, as in python -m")
    # The platforms are those of `JobDescription`.
    add(
        several,
        "--nnodes",
        type=_nodes,
        metavar="M",
        help="number of nodes; default: that of the platform (PET_*, SM_HOSTS), or 1",
    )
    add(
        several,
        "--node-rank",
        type=int,
        metavar="R",
        help="rank of this node, from 0; several nodes need it, or a platform",
    )
    add(several, "--master-addr", metavar="A", help="address of node 0; several nodes need it, or a platform")
    add(
        several,
        "--master-port",
        type=_port,
        metavar="P",
        help=f"port of node 0; default {MASTER_PORT}, on a single node a free port",
    )
    add(
        several,
        "--local-addr",
        is_rare=True,
        metavar="A",
        help="address of this node for the others; default: that of its connection to node 0",
    )
    add(several, "--standalone", is_rare=True, action="store_true", help="a single node, which is the default")
    add(
        several,
        "--rdzv-timeout",
        is_rare=True,
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds to wait for the other nodes; default 300",
    )
    add(
        failures,
        "--max-restarts",
        type=_count,
        default=0,
        metavar="K",
        help="start all processes again, up to K times, after one has failed, or a node is gone other than node 0; "
        "default 0",
    )
    add(
        failures,
        "--min-procs",
        type=_count,
        metavar="N",
        help="processes with which the job continues when nodes other than node 0 are gone; default: all",
    )
    add(
        failures,
        "--grace-seconds",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL, and of the wait for all to end after one was preempted; default 10",
    )
    add(
        failures,
        "--node-timeout",
        is_rare=True,
        type=_node_timeout,
        default=30.0,
        metavar="S",
        help="seconds after which a silent node counts as gone, and ranks that are stopped (SIGSTOP) as lost, if no "
        "other rank runs; 0: never; default 30",
    )
    add(
        watching,
        "--status-port",
        type=_port_or_any,
        metavar="P",
        help=f"show the job's status at this port, 0 for a free one; default: {PORT_VARIABLE}, or none",
    )
    add(
        watching,
        "--status-host",
        is_rare=True,
        metavar="A",
        help=f"the address to show it at, 0.0.0.0 for all; needs a token, random unless {TOKEN_VARIABLE} has one; "
        f"default {LOOPBACK}, which only this machine reaches",
    )
    commands.add_argument("script", help="the program to start")
    commands.add_argument("script_args", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    return commands


def _nodes(text: str) -> int:
    least, _, most = text.partition(":")
    if not least.isdecimal() or int(least) < 1 or most not in ("", least):
        raise argparse.ArgumentTypeError(
            f"must be a number of nodes, at least 1; elastic ranges are not supported. Received: {text!r}"
        )
    return int(least)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be between 1 and 65535. Received: {text!r}")
    return int(text)


def _port_or_any(text: str) -> int:
    return 0 if text == "0" else _port(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more. Received: {text!r}")
    return seconds


def _node_timeout(text: str) -> float:
    seconds = _seconds(text)
    if 0 < seconds < _LEAST_NODE_TIMEOUT_SECONDS:
        raise argparse.ArgumentTypeError(f"must be 0, or {_LEAST_NODE_TIMEOUT_SECONDS:g} or more. Received: {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more. Received: {text!r}")
    return int(text)


def _positive_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number, 1 or more. Received: {text!r}")
    return int(text)
