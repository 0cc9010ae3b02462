"""The launcher as a user starts it, with small programs in plain Python: their environment and their output."""

import json
import os
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from strategies.topology.cluster import Cluster
from strategies.topology.cores import partition_cores
from tests.processes import free_ports
from tests.strategies.launching import ENVIRONMENT, LAUNCHER, TIMEOUT_SECONDS, Running, launched, written

CORES = sorted(os.sched_getaffinity(0))

TELL_ALL = """
import json, os, sys
cores = sorted(os.sched_getaffinity(0))
print(json.dumps([dict(os.environ), sys.argv, cores, sys.stdin.read(), os.getsid(0) == os.getpid()]))
"""


def parse_output(output: bytes) -> dict[str, list[Any]]:
    """Returns the JSON that the processes printed to stdout, by prefix."""
    lines = [line.partition(" ") for line in output.decode().splitlines()]
    return {prefix: json.loads(text) for prefix, _, text in sorted(lines)}


def test_every_process_is_told_its_place_and_given_its_cores(tmp_path: Path) -> None:
    arguments = ["two words", "--nnodes", "9", "--", "-m", ""]
    path = written(tmp_path, TELL_ALL)

    done = launched("--nproc-per-node", "3", path, *arguments, environment={"OMP_NUM_THREADS": "7"})

    assert (done.returncode, done.stderr) == (0, b"")
    by_prefix = parse_output(done.stdout)
    assert list(by_prefix) == ["[0]", "[1]", "[2]"]
    addresses = set()
    for rank, (environment, argv, cores, stdin, is_session) in enumerate(by_prefix.values()):
        cluster = Cluster.from_environment(environment)
        addresses.add(cluster.addresses)
        assert (cluster.rank, cluster.world_size, cluster.local_rank, cluster.local_size) == (rank, 3, rank, 3)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
        assert [environment[name] for name in names] == [str(rank), str(rank), "3", "3", "0", "127.0.0.1"]
        assert f"127.0.0.1:{environment['MASTER_PORT']}" not in cluster.addresses
        assert argv == [path, *arguments]
        own = partition_cores(CORES, 3)[rank]
        assert cores == list(own)
        assert environment["TF_NUM_INTRAOP_THREADS"] == str(len(own))
        assert environment["TF_NUM_INTEROP_THREADS"] == str(max(2, len(own)))
        assert environment["OMP_NUM_THREADS"] == "7"
        assert (stdin, is_session) == ("", True)
    assert len(addresses) == 1


def test_torchruns_other_words(tmp_path: Path) -> None:
    (tmp_path / "their_module.py").write_text(TELL_ALL)
    path = {"PYTHONPATH": str(tmp_path)}

    done = launched("--nproc_per_node=1", "--standalone", "--no-pin", "-m", "their_module", "x", environment=path)
    ((_, argv, cores, *_),) = parse_output(done.stdout).values()
    assert (argv, cores) == ([str(tmp_path / "their_module.py"), "x"], CORES)

    done = launched("--no-python", "--nproc-per-node", "2", "sh", "-c", 'echo "$RANK $0"', "a word")
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 a word", b"[1] 1 a word"]


def test_lines_stay_whole(tmp_path: Path) -> None:
    code = """
import sys
for i in range(3000):
    stream = sys.stdout if i % 2 else sys.stderr
    stream.buffer.write(b"%d " % i + b"\\xff" * 200 + b"\\n")
    stream.buffer.flush()
sys.stdout.buffer.write(b"y" * 300_000 + b"\\n")
sys.stdout.buffer.write(b"no newline")
"""
    done = launched("--nproc-per-node", "3", written(tmp_path, code))
    assert done.returncode == 0
    assert all(re.match(rb"\[[012]\] ", line) for line in (done.stdout + done.stderr).splitlines())
    expected = [b"%d " % i + b"\xff" * 200 for i in range(3000)]
    for rank in range(3):
        prefix = b"[%d] " % rank
        out, err = (
            [line.removeprefix(prefix) for line in output.split(b"\n") if line.startswith(prefix)]
            for output in (done.stdout, done.stderr)
        )
        assert err == expected[::2]
        assert out[:1500] == expected[1::2]
        assert b"".join(out[1500:]) == b"y" * 300_000 + b"no newline"
        assert out[-1] == b"no newline"


def test_a_reader_that_leaves_does_not_end_the_job(tmp_path: Path) -> None:
    code = f"""
for i in range(20_000):
    print("line", i)
open({str(tmp_path / "end")!r}, "w").close()
"""
    command = [*LAUNCHER, written(tmp_path, code)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"[0] line 0\n"
            process.stdout.close()
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()
    assert (tmp_path / "end").exists()


def test_a_terminal_for_a_terminal(tmp_path: Path) -> None:
    code = r"""
import os, sys
assert sys.stdout.isatty() and not sys.stderr.isatty()
print(os.get_terminal_size().columns)
for bar in ("1/2 slow", "2/2"):
    sys.stdout.write("\b" * 5 + "\r" + bar)
print("\nend")
"""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(ours, (24, 80))
        command = [*LAUNCHER, written(tmp_path, code)]
        done = subprocess.run(
            command, env=ENVIRONMENT, stdout=theirs, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS, check=False
        )
        shown = os.read(ours, 1 << 16)
    finally:
        os.close(theirs)
        os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown == b"[0] 76\r\n[0] 1/2 slow\b\b\b\b\b\r\x1b[K[0] 2/2\r\n[0] end\r\n"


def test_two_nodes(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    path = written(tmp_path, TELL_ALL)
    flags = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    by_prefix: dict[str, list[Any]] = {}
    with (
        Running("--node-rank", "1", "--nproc-per-node", "2", *flags, path) as second,
        Running("--node-rank", "0", "--nproc-per-node", "1", *flags, path) as first,
    ):
        for node in (first, second):
            code, stdout, stderr = node.end()
            assert (code, stderr) == (0, b"")
            by_prefix |= parse_output(stdout)
    assert list(by_prefix) == ["[0]", "[1]", "[2]"]
    environments = [environment for environment, *_ in by_prefix.values()]
    clusters = [Cluster.from_environment(environment) for environment in environments]
    assert [cluster.rank for cluster in clusters] == [0, 1, 2]
    assert len({cluster.addresses for cluster in clusters}) == 1
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")
    assert [[environment[name] for name in names] for environment in environments] == [
        ["0", "0", "3", "1", "0", port],
        ["1", "0", "3", "2", "1", port],
        ["2", "1", "3", "2", "1", port],
    ]


def test_a_missing_node_ends_the_wait(tmp_path: Path) -> None:
    [port] = free_ports(1)
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    done = launched(*flags, "--rdzv-timeout", "0.5", written(tmp_path, "print('never')"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"did not connect to 127.0.0.1:%d within 0.5 s: node 1." % port in done.stderr


def test_as_users_start_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strategies.launch", "--nproc-per-node", "2", written(tmp_path, "print('hello')")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [b"[0] hello", b"[1] hello"])
    refused = launched(written(tmp_path, "print('never')"), environment={"HOROVOD_RANK": "0"})
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"horovodrun: HOROVOD_RANK is set. Start the program with one launcher" in refused.stderr
