"""Two processes that share one GPU, or the CPU, under MultiWorkerMirroredStrategy.

NCCL refuses two ranks on one GPU ("Duplicate GPU detected"), also on two MIG instances of it, so reductions go through
the hosts: TensorFlow's RING implementation over gRPC.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from tests.gpu import models
from tests.gpu.outcome import Outcome, judged
from tests.gpu.training import compiled

_SECONDS = 150.0


def outcome(name: str, kind: str, allowed: float) -> Outcome:
    """Trains in two processes, and in plain Keras in this one, on the CPU, which leaves the GPU to the two."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{rank}.npz" for rank in range(2)]
        processes = []
        try:
            with contextlib.ExitStack() as stack:
                sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
                workers = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
            for rank, file in enumerate(files):
                task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                command = [sys.executable, "-m", "tests.gpu.two_processes", kind, str(file)]
                # Our packages refuse processes that share a GPU; here it is intended.
                environment = {**os.environ, "TF_CONFIG": json.dumps(task), "KERAS_STRATEGIES_SHARED_GPUS": "1"}
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                )
            errors = [process.communicate(timeout=_SECONDS)[1].decode(errors="replace") for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, text in zip(processes, errors, strict=True):
            if process.returncode:
                last = text.strip().splitlines()[-1:] or [""]
                return Outcome(name, "failed", note=last[0][:200])
        with tf.device("CPU:0"):
            plain = compiled(models.dense(kind == "cpu"), device="CPU:0")
            plain.epoch()
        there, here = np.load(files[0]), plain.model.get_weights()
        gap = max(float(np.abs(there[key] - value).max()) for key, value in zip(there.files, here, strict=True))
        same = all(np.array_equal(there[key], np.load(files[1])[key]) for key in there.files)
        if not same:
            return Outcome(name, "differs", note="the two processes have different weights")
        note = "RING over gRPC: NCCL refuses two ranks on one GPU; compared with the CPU"
        return judged(name, gap, allowed, note=note)


def _rank(kind: str, file: str) -> None:
    strategies.exact()
    if kind == "gpu":
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    else:
        tf.config.set_visible_devices([], "GPU")
    implementation = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy = strategies.MultiWorkerMirroredStrategy(communication_options=options)
    trained = compiled(models.dense(kind == "cpu"), strategy)
    trained.epoch()
    np.savez(file, *trained.model.get_weights())


if __name__ == "__main__":
    _rank(*sys.argv[1:])
