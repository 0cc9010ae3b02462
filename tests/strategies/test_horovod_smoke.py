"""The Horovod that `make test` installed works: two processes all-reduce a tensor over loopback."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "horovod_all_reduce.py"
HOROVODRUN = Path(sys.executable).parent / "horovodrun"
TIMEOUT_SECONDS = 120


def run_to_the_end(command: list[str], timeout_seconds: float) -> tuple[int | None, str]:
    """Runs `command`; returns its exit status (None: it took too long) and its output.

    It leaves no process behind. horovodrun starts every rank in a session of its own, so ending its process
    group is not enough.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    status: int | None = None
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        # It starts no more processes while they are listed.
        os.killpg(process.pid, signal.SIGSTOP)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        output, _ = process.communicate()
    return status, output.decode(errors="replace")


# Horovod's collectives and suites test this, too; this test shows whether Horovod works without this package.
@pytest.mark.parity_all
@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
def test_two_ranks_all_reduce_a_tensor() -> None:
    if not HOROVODRUN.exists():
        pytest.fail(f"There is no {HOROVODRUN}. Install Horovod: python -m strategies.install_horovod")
    ranks = [sys.executable, str(PROGRAM)]
    command = [str(HOROVODRUN), "-np", "2", "--disable-cache", "--network-interfaces", "lo", *ranks]

    status, output = run_to_the_end(command, TIMEOUT_SECONDS)

    assert status == 0, f"horovodrun ended with {status} (None: after {TIMEOUT_SECONDS} s). Its output:\n{output}"
    for rank in range(2):
        assert f"rank {rank} of 2: [3.0, 6.0, 9.0]" in output


def test_a_program_that_never_ends_is_ended_with_its_children() -> None:
    # The number of seconds, odd on purpose, identifies the child process afterwards.
    child = ["sleep", f"1000.{os.getpid()}"]
    code = f"import subprocess; subprocess.run({child}, start_new_session=True)"

    status, _ = run_to_the_end([sys.executable, "-c", code], timeout_seconds=2)

    assert status is None
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == child]
