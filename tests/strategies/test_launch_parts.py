"""The launcher's parts without its processes: flags, environments, cores, lines and ports."""

import itertools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from strategies import launch
from strategies.launching.environment import (
    World,
    check_single_launcher,
    num_processes,
    rank_environment,
)
from strategies.launching.output import MAX_LINE_BYTES, Lines, Output
from strategies.launching.ports import ReservedPorts
from strategies.launching.processes import Process, Task
from strategies.topology.cluster import Cluster
from strategies.topology.cores import partition_cores, usable_cores
from tests.strategies.launching import ENVIRONMENT

WORLD = World(
    (("a:1", "a:2"), ("b:1", "b:2", "b:3")), 1, "a", 29500, num_restarts=1, max_restarts=3, traceback_dir="/t"
)


def test_starts_without_tensorflow() -> None:
    """Starts in a tenth of a second: the rest of the package is imported on first use."""
    program = "import sys, strategies.launch; print(sorted({'keras', 'numpy', 'tensorflow'} & sys.modules.keys()))"
    environment = ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "[]\n"


class TestEnvironment:
    def test_names_the_rank_to_tensorflow_and_in_torchruns_words(self) -> None:
        variables = rank_environment(WORLD, local_rank=1, num_cores=3, environment={"HOME": "/h", "RANK": "7"})
        assert Cluster.from_environment(variables) == Cluster(
            3, 5, 1, 3, 1, ("a:1", "a:2", "b:1", "b:2", "b:3"), "TF_CONFIG"
        )
        del variables["TF_CONFIG"]
        assert variables == {
            "HOME": "/h",
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "5",
            "LOCAL_WORLD_SIZE": "3",
            "GROUP_RANK": "1",
            "MASTER_ADDR": "a",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "1",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "STRATEGIES_TRACEBACK_DIR": "/t",
            "TF_NUM_INTRAOP_THREADS": "3",
            "TF_NUM_INTEROP_THREADS": "3",
            "OMP_NUM_THREADS": "3",
            "PYTHONUNBUFFERED": "1",
        }

    def test_a_process_with_one_core_has_two_inter_op_threads(self) -> None:
        variables = rank_environment(WORLD, 0, 1, {"OMP_NUM_THREADS": "5"})
        threads = [variables[f"TF_NUM_{kind}_THREADS"] for kind in ("INTRAOP", "INTEROP")]
        assert [*threads, variables["OMP_NUM_THREADS"]] == ["1", "2", "5"]

    @pytest.mark.parametrize(
        ("cores", "size", "shares"),
        [
            ((0, 1, 2, 3), 2, [(0, 1), (2, 3)]),
            ((0, 2, 4, 6, 8), 2, [(0, 2), (4, 6, 8)]),
            ((3, 5), 2, [(3,), (5,)]),
            ((3, 5), 1, [(3, 5)]),
            ((3, 5), 5, [(3,), (5,), (3,), (5,), (3,)]),
        ],
    )
    def test_cores(self, cores: tuple[int, ...], size: int, shares: list[tuple[int, ...]]) -> None:
        assert partition_cores(cores, size) == shares

    @pytest.mark.parametrize(
        ("text", "visible", "expected"),
        [
            ("3", "", 3),
            ("cpu", "0,1", len(usable_cores())),
            ("auto", "", len(usable_cores())),
            ("auto", "-1", len(usable_cores())),
            ("auto", "0,1,2", 3),
            ("gpu", "GPU-a, GPU-b", 2),
            ("gpu", "1,-1,2", 1),
        ],
    )
    def test_number_of_processes(self, text: str, visible: str, expected: int) -> None:
        assert num_processes(text, {"CUDA_VISIBLE_DEVICES": visible}) == expected

    def test_gpus_are_asked_for_where_no_variable_tells(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert num_processes("auto", {}) == len(usable_cores())
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0:\nGPU 1: H200'\n")
        tool.chmod(0o755)
        assert num_processes("gpu", {"PATH": str(tmp_path)}) == 2

    @pytest.mark.parametrize(
        ("environment", "launcher"),
        [
            ({"HOROVOD_RANK": "0"}, "horovodrun"),
            ({"OMPI_COMM_WORLD_RANK": "0"}, "mpirun"),
            ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG is set"),
        ],
    )
    def test_another_launcher_is_refused(self, environment: dict[str, str], launcher: str) -> None:
        with pytest.raises(ValueError, match=launcher):
            check_single_launcher(environment)

    @pytest.mark.parametrize("text", ["", "{}", "{", "[]", '{"cluster": {}}'])
    def test_a_tf_config_without_a_job_is_replaced(self, text: str) -> None:
        check_single_launcher({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "required: script"),
        (["--nproc-per-node", "0", __file__], "number of processes, at least 1.*Received: '0'"),
        (["--nproc_per_node=gpu", __file__], "no GPU found"),
        (["--nnodes", "1:2", __file__], "elastic ranges are not supported. Received: '1:2'"),
        (["--nnodes", "2", __file__], "needs --node-rank, 0 to 1"),
        (["--nnodes", "2", "--node-rank", "0", __file__], "needs --master-addr, the address of node 0"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a", __file__], "between 0 and 1.*Received: 2"),
        (["--node-rank", "1", __file__], "between 0 and 0.*Received: 1"),
        (["--nnodes", "2", "--node-rank", "0", "--standalone", __file__], "--standalone means a single node"),
        (["--master-port", "65536", __file__], "between 1 and 65535"),
        (["--grace-seconds", "-1", __file__], "seconds, 0 or more. Received: '-1'"),
        (["--max-restarts", "-1", __file__], "a number, 0 or more. Received: '-1'"),
        (["--min-procs", "2", __file__], "--min-procs must not exceed the number of processes, 1. Received: 2"),
        (["--node-timeout", "1", __file__], "must be 0, or 5 or more. Received: '1'"),
        (["--rdzv-timeout", "inf", __file__], "seconds, 0 or more. Received: 'inf'"),
        (["--nproc", "2", __file__], "unrecognized arguments|required"),
        (["--module", "--no-python", "x"], "exclude each other"),
        (["--no-python", "no-such-command"], "no such command.*Received: 'no-such-command'"),
        (["no_such_script.py", "--nproc-per-node", "2"], "no such file.*Received: 'no_such_script.py'"),
        ([str(Path(__file__).parent)], "no such file"),
    ],
)
def test_refused_flags(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(SystemExit, match="2"):
        launch.main(flags)
    assert re.search(message, capsys.readouterr().err)


class TestLines:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b"a\n\nb\n", [b"a\n", b"\n", b"b\n"]),
            (b"a\r\nb", [b"a\r\n", b"b\n"]),
            (b"\r1/2\b\b\b\r2/2\nend", [b"\r", b"1/2\b\b\b\r", b"2/2\n", b"end\n"]),
            (b"\xff\xfe\n\x00", [b"\xff\xfe\n", b"\x00\n"]),
            (b"50%\r", [b"50%\n"]),
            (b"", []),
        ],
    )
    def test_however_the_bytes_arrive(self, text: bytes, expected: list[bytes]) -> None:
        for cut in range(len(text) + 1):
            lines = Lines()
            pieces = [lines.feed(text[:cut]), lines.feed(text[cut:]), lines.close()]
            assert list(itertools.chain(*pieces)) == expected

    def test_a_huge_line_is_printed_in_pieces_and_not_kept(self) -> None:
        lines = Lines()
        pieces = [piece for _ in range(160) for piece in lines.feed(b"x" * 1000)]
        assert pieces == [b"x" * MAX_LINE_BYTES + b"\n"] * 2
        assert list(lines.feed(b"\n")) == [b"x" * (160_000 - 2 * MAX_LINE_BYTES) + b"\n"]

    def test_a_line_of_just_that_size_is_one_line(self) -> None:
        lines = Lines()
        assert [*lines.feed(b"x" * MAX_LINE_BYTES), *lines.feed(b"\n")] == [b"x" * MAX_LINE_BYTES + b"\n"]


def test_ports_are_held_until_closed() -> None:
    reserved = ReservedPorts(20)
    try:
        assert len(set(reserved.ports)) == 20
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", reserved.ports[0]))
    finally:
        reserved.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", reserved.ports[0]))


def test_a_process_that_has_ended_is_not_stopped() -> None:
    """Tests also a process whose end nobody has noticed yet; the system then has no process that could be stopped."""
    output = Output()
    process = Process(Task(0, [sys.executable, "-c", ""], ENVIRONMENT), output, lambda: None)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.status is None
    assert not process.is_stopped
    assert process.look()
    process.end()
