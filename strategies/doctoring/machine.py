"""The devices, cores and threads of this process."""

from __future__ import annotations

import os
import socket

import tensorflow as tf

from strategies.cuda_version import tensorflow_cuda_version
from strategies.doctoring.report import Report
from strategies.topology.cluster import Cluster
from strategies.topology.cores import THREAD_VARIABLES
from strategies.topology.xla_support import reason_against_xla

#: The command that starts the doctor on two ranks.
LAUNCH = "python -m strategies.launch --nproc-per-node 2 -m strategies.doctor"


def check_machine(cluster: Cluster, report: Report) -> None:
    """Reports devices, cores and threads of this process."""
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
            "CUDA in TensorFlow": tensorflow_cuda_version() or False,
        },
    )
    unsupported = reason_against_xla()
    if unsupported is not None:
        report.hint(f"{unsupported}. Models run without XLA, unless `jit_compile=True`, which ends the process.")
    pinned = len(cores) < (os.cpu_count() or 1)
    threads = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    report.section("threads", {"cores": len(cores), "of": os.cpu_count(), "pinned": pinned, **threads})
    if cluster.local_size > 1 and not gpus and not pinned and threads["TF_NUM_INTRAOP_THREADS"] is None:
        share = max(1, len(cores) // cluster.local_size)
        report.hint(
            f"{cluster.local_size} processes share these cores. HorovodStrategy divides the threads among them; "
            f"otherwise each starts threads for all cores: set TF_NUM_INTRAOP_THREADS={share} and "
            f"OMP_NUM_THREADS={share}, or start with `{LAUNCH}`, which pins processes to cores."
        )
