"""A report on the software, the devices and the ranks, and how fast they exchange: ``python -m strategies.doctor``.

    python -m strategies.doctor
    python -m strategies.launch --nproc-per-node 2 -m strategies.doctor
    horovodrun -np 2 python -m strategies.doctor

Start it as the program that does not start, or is slow, is started. Rank 0 reports; every other rank prints one line
on itself, and its problems. The exit code is 1 if there is a problem, which is printed together with its remedy. Other
ranks are waited for no longer than --timeout-seconds.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

import strategies
from strategies._horovod_recipe import installed_version
from strategies.topology.cluster import Cluster
from strategies.topology.cores import THREAD_VARIABLES

#: The releases that this one is written for, as in pyproject.toml.
WRITTEN_FOR = {"tensorflow": "2.21", "keras": "3.15"}

#: In units of 10^6 bytes, and how often each is measured.
SIZES_MB = {0.1: 15, 1.0: 15, 10.0: 7, 100.0: 3}

_INSTALL_HOROVOD = "python -m strategies.install_horovod"
_LAUNCH = "python -m strategies.launch --nproc-per-node 2 -m strategies.doctor"


class Report:
    """The findings, printed at once in words, or at the end as a line of JSON.

    Args:
        as_json: whether they are printed as JSON.
        rank: this process' rank; ranks other than 0 print only problems and the line on themselves.
    """

    def __init__(self, *, as_json: bool = False, rank: int = 0) -> None:
        self.found: dict[str, Any] = {"problems": [], "hints": []}
        self._as_json, self.rank = as_json, rank

    def section(self, title: str, values: Mapping[str, Any]) -> None:
        """Adds values by name under a title."""
        self.found[title.replace(" ", "_").replace("-", "_")] = dict(values)
        if self.rank == 0:
            self._say(title, *(f"  {name}: {_words(value)}" for name, value in values.items()))

    def line(self, values: Mapping[str, Any]) -> None:
        """Adds what each rank says of itself."""
        self.found.update(values)
        self._say(", ".join(f"{name} {_words(value)}" for name, value in values.items()))

    def problem(self, text: str) -> None:
        """Adds what has to be mended."""
        self.found["problems"].append(text)
        self._say(f"PROBLEM: {text}")

    def hint(self, text: str) -> None:
        """Adds what may be better otherwise; rank 0's word is enough."""
        if self.rank == 0:
            self.found["hints"].append(text)
            self._say(f"hint: {text}")

    def close(self) -> int:
        """Ends the report; returns the exit code."""
        count = len(self.found["problems"])
        if self._as_json:
            print(json.dumps(self.found), flush=True)
        elif self.rank == 0:
            self._say(f"{count} problem(s), see above." if count else "All well.")
        return int(count > 0)

    def _say(self, *lines: str) -> None:
        if not self._as_json:
            print("\n".join(lines), flush=True)


def _words(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"


def in_parallel(check: Callable[[str], object], items: Iterable[str], timeout_seconds: float) -> dict[str, str]:
    """Returns the errors by item: ``check`` raised an OSError, or has not returned in time."""
    wrong = dict.fromkeys(items, f"no answer in {timeout_seconds:g} s")

    def ask(item: str) -> None:
        with contextlib.suppress(KeyError):
            try:
                check(item)
                del wrong[item]
            except OSError as reason:
                wrong[item] = str(reason)

    # Daemons: a name server that does not answer must not keep the interpreter from ending.
    threads = [threading.Thread(target=ask, args=[item], daemon=True) for item in list(wrong)]
    end = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(wrong)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _connect(address: str) -> None:
    socket.create_connection(_host_and_port(address), timeout=3.0).close()


def check_addresses(cluster: Cluster, report: Report, timeout_seconds: float = 10.0) -> bool:
    """Returns whether this rank's own port is free, and the names of all hosts are known here."""
    if not cluster.addresses:
        return True
    num_problems = len(report.found["problems"])
    own = cluster.addresses[cluster.rank]
    port = _host_and_port(own)[1]
    with socket.socket() as probe:
        # As servers do: a connection that was closed a moment ago does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            report.problem(
                f"rank {cluster.rank} is to listen at {own}, and cannot: {error}. End the program that has the port "
                f"(`ss -ltnp 'sport = :{port}'` shows it), or write another port, on all ranks, in {cluster.source}."
            )
    hosts = dict.fromkeys(_host_and_port(address)[0] for address in cluster.addresses)
    for host, why in in_parallel(lambda host: socket.getaddrinfo(host, None), hosts, timeout_seconds).items():
        ranks = [rank for rank, address in enumerate(cluster.addresses) if _host_and_port(address)[0] == host]
        report.problem(
            f"the host {host!r} of rank {_words(ranks)} is not known here: {why}. Write its IP address in "
            f"{cluster.source}, or make the name known (/etc/hosts, DNS)."
        )
    return len(report.found["problems"]) == num_problems


def check_horovod(report: Report, timeout_seconds: float = 60.0) -> None:
    """Reports the installed Horovod, and what it was built with, found in a process of its own."""
    version = installed_version("horovod")
    if version is None:
        report.section("horovod", {"installed": False, "to install": _INSTALL_HOROVOD})
        return
    # Not `horovodrun --check-build`, which imports TensorFlow half a dozen times.
    code = "import horovod.tensorflow as h; print([int(bool(b())) for b in (h.gloo_built, h.mpi_built, h.nccl_built)])"
    # An import is no rank of the job.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_", "PMIX_"))}
    try:
        done = subprocess.run(
            # -P: a folder named horovod where we happen to stand is not the package.
            [sys.executable, "-P", "-c", code],
            env=clean | {"CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        report.section("horovod", {"installed": version, "built with": f"no answer in {timeout_seconds:g} s"})
        return
    built: list[str] = []
    if done.returncode == 0:
        bits = json.loads(done.stdout.splitlines()[-1])
        built = [name for name, bit in zip(("Gloo", "MPI", "NCCL"), bits, strict=True) if bit]
    report.section("horovod", {"installed": version, "built with": built})
    for_tensorflow = re.search(r"\+tf([0-9.]*[0-9])", version)
    if for_tensorflow and for_tensorflow[1] != tf.__version__:
        report.problem(
            f"Horovod {version} was built for another TensorFlow than the installed {tf.__version__}. Build it for "
            f"this one: {_INSTALL_HOROVOD}"
        )
    elif done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        report.problem(f"Horovod {version} does not work here: {why}. Build it anew: {_INSTALL_HOROVOD} --force")


def check_versions(report: Report) -> None:
    """The versions of everything, and whether they are those that this release is written for."""
    names = ("keras-strategies", "tensorflow", "keras", "numpy")
    versions = {name: installed_version(name) or "not installed as a package" for name in names}
    versions |= {"tensorflow": tf.__version__, "keras": keras.__version__}
    report.section("versions", {"python": platform.python_version(), **versions, "platform": platform.platform()})
    for name, wanted in WRITTEN_FOR.items():
        if not f"{versions[name]}.".startswith(f"{wanted}."):
            report.problem(
                f"{name} {versions[name]} is another release than the {wanted} that this package is written for. "
                f"Install it: python -m pip install '{name}=={wanted}.*'"
            )
    if keras.config.backend() != "tensorflow":
        report.problem(f"Keras runs on {keras.config.backend()}, not on TensorFlow. Set KERAS_BACKEND=tensorflow")


def check_machine(cluster: Cluster, report: Report) -> None:
    """Devices, cores and threads of this process."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    physical = tf.config.list_physical_devices()
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in physical if gpu.device_type == "GPU"]
    devices = [device.name.removeprefix("/physical_device:") for device in physical]
    report.line(
        {"rank": cluster.rank, "host": socket.gethostname(), "pid": os.getpid(), "devices": devices}
        | {"cores": cores or "of the system's choice"}
    )
    report.section(
        "devices",
        {
            "physical": devices,
            "GPUs": [gpu.get("device_name", "GPU") for gpu in gpus],
            "CUDA in TensorFlow": tf.sysconfig.get_build_info().get("cuda_version", False),
        },
    )
    pinned = len(cores) < (os.cpu_count() or 1)
    threads = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    report.section("threads", {"cores": len(cores), "of": os.cpu_count(), "pinned": pinned, **threads})
    if cluster.local_size > 1 and not gpus and not pinned and threads["TF_NUM_INTRAOP_THREADS"] is None:
        share = max(1, len(cores) // cluster.local_size)
        report.hint(
            f"{cluster.local_size} processes share these cores. HorovodStrategy deals their number out; otherwise "
            f"each starts threads for all of them: set TF_NUM_INTRAOP_THREADS={share} and OMP_NUM_THREADS={share}, or "
            f"start with `{_LAUNCH}`, which pins."
        )


def exchange(cluster: Cluster, report: Report, flags: argparse.Namespace) -> None:
    """Joins the other ranks and sums up tensors with them, in a process of its own.

    TensorFlow keeps the interpreter while it waits for other processes, and may end it if they fail.
    """
    strategy = "HorovodStrategy" if cluster.source in ("HOROVOD", "OMPI") else "MultiWorkerMirroredStrategy"
    seconds = flags.timeout_seconds
    command = [sys.executable, "-m", "strategies.doctor", "--exchange", strategy]
    command += ["--max-mb", str(flags.max_mb), "--timeout-seconds", str(seconds)]
    # A launcher that ends us means the child, too.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    silent: dict[str, str] | None = None
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        try:
            output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            others = [address for rank, address in enumerate(cluster.addresses) if rank != cluster.rank]
            silent = in_parallel(_connect, others, 4.0)
            child.kill()
            output, _ = child.communicate()
        finally:
            child.kill()
    said: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    if "devices" in said:
        report.section("logical devices", {"here": said["devices"]})
    who = f"rank {cluster.rank} of {cluster.world_size}, {strategy}"
    doing = "sums up tensors" if "devices" in said else "joins the other processes"
    if silent is not None:
        missing = "; ".join(f"rank {cluster.addresses.index(a)} at {a} ({why})" for a, why in silent.items())
        report.problem(
            f"{who}: {doing}, and was not done after {seconds:g} s. "
            f"{f'Nobody answers for {missing}. ' if missing else ''}Start all ranks with the same command, at the same "
            f"time, and open their ports in the firewall; or wait longer: --timeout-seconds."
        )
    elif "problem" in said or child.returncode:
        why = said.get("problem", f"exit code {child.returncode}; what it wrote above says why")
        report.problem(f"{who}: {doing}, and failed: {why}")
    else:
        report.section("all-reduce", {"by": strategy, **said["rates"]})


def _exchange_here(flags: argparse.Namespace) -> int:
    """Exchanges tensors, in the child process, and prints its progress as lines of JSON; returns the exit code."""
    # Should nobody be left to end us.
    faulthandler.dump_traceback_later(flags.timeout_seconds + 30, exit=True)
    try:
        strategy = getattr(strategies, flags.exchange)()
        print(json.dumps({"devices": list(strategy.extended.worker_devices)}), flush=True)
        print(json.dumps({"rates": measure(strategy, flags.max_mb)}), flush=True)
    except Exception as error:
        # Anything: this program is for finding out what is wrong, in words.
        print(json.dumps({"problem": str(error).strip() or type(error).__name__}), flush=True)
        return 1
    return 0


def measure(strategy: Any, max_mb: float) -> dict[str, Any]:
    """Sums tensors over the ranks: microseconds for one number, and GB/s by size.

    GB/s are the bytes of one rank's tensor, divided by the median of the times that its sum took.

    Raises:
        ValueError: a sum that is wrong.
    """
    process_group = strategy.extended.process_group
    microseconds, rates = 0.0, {}
    for size_mb, repetitions in {0.0: 30, **SIZES_MB}.items():
        if size_mb > max_mb:
            continue
        num_values = max(1, round(size_mb * 1e6 / 4))
        part = tf.fill([num_values], float(process_group.rank + 1))
        sum_up = tf.function(lambda part: process_group.sum([part])[0], autograph=False)
        seconds = []
        for _ in range(2 + repetitions):
            start = time.perf_counter()
            total = sum_up(part)
            # Reading one value waits for all of them.
            received = float(total[-1])
            seconds.append(time.perf_counter() - start)
        expected = process_group.num_processes * (process_group.num_processes + 1) / 2
        if received != expected:
            raise ValueError(f"the sum over all ranks came out as {received}, not {expected}")
        median = statistics.median(seconds[2:])
        if size_mb:
            rates[f"{size_mb:g} MB"] = float(f"{size_mb / 1e3 / median:.3g}")
        else:
            microseconds = round(median * 1e6, 1)
    return {"latency in microseconds": microseconds, "GB/s": rates}


def main(argv: Sequence[str] | None = None) -> int:
    """Looks at everything, prints the report and returns the exit code: 1 if there is a problem.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for flags that will not do.
    """
    flags = _parser().parse_args(argv)
    if flags.exchange:
        return _exchange_here(flags)
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
            report.section("logical devices", {"here": [device.name for device in tf.config.list_logical_devices()]})
            report.hint(f"this is one process. To see how fast several exchange: {_LAUNCH}")
        elif check_addresses(cluster, report):
            exchange(cluster, report, flags)
    return report.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m strategies.doctor", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--max-mb", type=_positive, default=100.0, metavar="MB", help="the largest sum; default 100")
    add("--json", action="store_true", help="one line of JSON per rank")
    add(
        "--timeout-seconds", type=_positive, default=180.0, metavar="S", help="how long to wait for others; default 180"
    )
    add("--exchange", choices=strategies.__all__, help=argparse.SUPPRESS)
    return parser


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
