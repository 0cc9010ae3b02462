"""Runs the contract in two processes joined by TensorFlow's collective runtime."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.processes import free_ports, python

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("two_process_worker.py")
LIMIT_SECONDS = 600


@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_the_contract_holds_between_two_processes(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    flags = ["--parity-all"] if pytestconfig.getoption("--parity-all") else []
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes, codes = [], [tmp_path / f"code{rank}" for rank in range(2)]
    logs = [tmp_path / f"log{rank}" for rank in range(2)]
    try:
        for rank in range(2):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            with logs[rank].open("w") as log:
                process = subprocess.Popen(
                    python(str(Path(__file__).with_name("two_process_worker.py")), str(codes[rank]), *flags),
                    cwd=ROOT,
                    env={**os.environ, "TF_CONFIG": json.dumps(config), "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            processes.append(process)
        end = time.monotonic() + LIMIT_SECONDS
        while not all(code.exists() and code.read_text() for code in codes):
            dead = [rank for rank, process in enumerate(processes) if process.poll() is not None]
            if dead or time.monotonic() > end:
                break
            time.sleep(0.2)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = "\n".join(f"--- rank {rank} ---\n{logs[rank].read_text()[-6000:]}" for rank in range(2))
    ended = [code.read_text() if code.exists() else "no exit code" for code in codes]
    assert ended == ["0", "0"], said
    assert all(" passed" in log.read_text() for log in logs), said
