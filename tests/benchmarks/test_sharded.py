"""`python benchmarks/sharded/main.py`: tables as values, and tiny real runs. Nothing is timed."""

import functools
import socket
import sys

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "sharded")

TINY = [
    "--model=mlp",
    "--mlp_layers=2",
    "--mlp_width=64",
    "--mlp_batch_size=4",
    "--mlp_steps=2",
    "--rounds=1",
]


@pytest.mark.timeout(300)
@pytest.mark.parity_all
@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
@pytest.mark.parametrize(
    ("names", "library"),
    [
        (("multi_worker", "multi_worker_sharded", "multi_worker_weights"), "tensorflow"),
        (("horovod", "horovod_sharded", "horovod_weights"), "horovod"),
        (("torch_ddp", "torch_zero1", "torch_fsdp2", "torch_fsdp2_reshard"), "torch"),
    ],
)
def test_trains_and_measures(names: tuple[str, ...], library: str) -> None:
    pytest.importorskip(library)
    done = run(*TINY, *(f"--contender={name}" for name in names))
    assert done.returncode == 0, done.stderr
    title = "## mlp, 2 layers of 64 units: 2 processes, batch 4 each, 2 steps, 1 rounds"
    assert title in done.stdout
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert f"time of {names[1]} / {names[0]}" in [row[0] for row in rows]
    whole, *sharded = [row for row in rows if len(row) == 7][2:]
    # Weights of 4 bytes, and slots of twice the size, sent at least once.
    num_bytes = 4 * (2 * 65 * 64 + 65 * 10) / 1e6
    assert [float(whole[5]), float(whole[6].rstrip(" |"))] == pytest.approx([num_bytes, 2 * num_bytes], rel=0.01)
    for row in sharded:
        assert float(row[3]) > num_bytes
        assert num_bytes * 0.9 < float(row[6].rstrip(" |")) < num_bytes * 1.2


@pytest.mark.parametrize("flag", ["--model=lenet", "--contender=mpi", "--rounds=0", "--processes=1", "mlp"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_compares_with_the_own_replicated_step_and_with_torch() -> None:
    from sharded import tables
    from sharded.contenders import KINDS

    assert tables.comparisons(["multi_worker_sharded"]) == []
    found = {each.name: each for each in tables.comparisons(list(KINDS))}
    assert all(each.at_most for each in found.values() if each.target is not None)
    targets = {name: each.target for name, each in found.items() if "horovod_sharded" in name}
    assert targets == {
        "time of horovod_sharded / horovod": 1.0,
        "time of horovod_sharded_before / horovod": None,
        "time of horovod_sharded / horovod_sharded_before": None,
        "time of horovod_sharded / torch_zero1": None,
        "time of horovod_sharded / torch_fsdp2": 0.9,
        "time of horovod_sharded / torch_fsdp2_reshard": 0.9,
        "time of horovod_sharded / torch_ddp": None,
        "share of replicated of horovod_sharded / of torch_zero1": None,
        "share of replicated of horovod_sharded / of torch_fsdp2": None,
        "share of replicated of horovod_sharded / of torch_fsdp2_reshard": None,
    }
    of_weights = {name: each.target for name, each in found.items() if each.target and "horovod_weights" in name}
    assert of_weights == {
        "time of horovod_weights / horovod": 1.15,
        "time of horovod_weights / torch_fsdp2_reshard": 0.9,
    }


def test_a_share_is_formed_round_by_round() -> None:
    from harness.turns import by_case
    from sharded import tables
    from sharded.cases import MEASURES
    from sharded.contenders import KINDS

    names = ["horovod", "horovod_sharded"]
    count = len(MEASURES)
    turns = {
        # Two rounds, the second in reverse order.
        KINDS["horovod"].row: [10.0, *[1.0] * (2 * count - 2), 20.0],
        KINDS["horovod_sharded"].row: [9.0, *[1.0] * (2 * count - 2), 16.0],
    }
    measured = by_case(turns, MEASURES)
    times = tables.times_of(measured, names)
    assert tables.shares(times, names) == {tables.share("horovod_sharded"): [0.9, 0.8]}
    assert tables.all_measured(measured, names).splitlines()[2] == "| HorovodStrategy() | 15 | 1 | 1 | 1 | 1 | 1 |"


def test_the_clock_hands_over_one_measure_a_turn() -> None:
    from sharded.cases import MEASURES
    from sharded.clock import Clock

    reported: list[float] = []
    clock = Clock(1, reported.append)
    clock.hold(3_000_000, 6_000_000)
    for _ in range(3):
        clock.start()
        clock.stop()
        clock.hand_over()
    # The first report is discarded; the next turns go forwards, the following ones backwards.
    assert reported[0] == 0
    assert reported[len(MEASURES) - 1 :][:4] == [3.0, 6.0, 6.0, 3.0]
    assert len(reported) == 2 * len(MEASURES) + 1


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_bytes_are_counted_where_they_are_sent() -> None:
    from harness import traffic

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        before = traffic.sent_bytes()
        here.sendall(bytes(1000))
        there.sendall(bytes(10))
        # Both ends are in this process.
        assert len(there.recv(1000, socket.MSG_WAITALL)) == 1000
        assert len(here.recv(10, socket.MSG_WAITALL)) == 10
        assert traffic.sent_bytes() - before == 1010


@pytest.mark.timeout(300)
@pytest.mark.parity_all
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_trains_within_a_limit() -> None:
    """The limit is generous: a small model's overhead besides its weights depends on the machine."""
    done = run_benchmark("sharded", "--layers=2", "--width=64", "--times=0.0001", program="memory_limit")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    losses = [[float(loss) for loss in row[1].split(", ")] for row in rows[-3:]]
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=1e-6)
