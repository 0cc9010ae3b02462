"""The doctor names ports that are in use, and unknown hosts."""

import socket
import threading
from types import SimpleNamespace

import pytest

from strategies.doctoring import addresses
from strategies.doctoring.addresses import check_addresses, in_parallel
from strategies.doctoring.report import Report
from strategies.topology.cluster import Cluster
from tests.processes import free_ports


def test_a_port_in_use_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, [other] = taken.getsockname()[1], free_ports(1)
        report = Report(as_json=True)
        assert not check_addresses(Cluster.from_addresses([f"127.0.0.1:{port}", f"127.0.0.1:{other}"], 0, "X"), report)
    [problem] = report.found["problems"]
    assert f"rank 0 cannot listen at 127.0.0.1:{port}" in problem
    assert "set another port, on all ranks, in X" in problem


def test_a_host_without_an_address_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: object) -> list[object]:
        if host == "nowhere":
            raise socket.gaierror(-2, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    own, *others = free_ports(3)
    addresses = [f"here:{own}", f"nowhere:{others[0]}", f"nowhere:{others[1]}"]
    report = Report(as_json=True)
    assert not check_addresses(Cluster.from_addresses(addresses, 0, "TF_CONFIG"), report)
    [problem] = report.found["problems"]
    assert "the host name 'nowhere' of rank 1, 2 cannot be resolved: [Errno -2] Name or service not known" in problem


def test_a_host_name_that_stands_for_loopback_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-b")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    cluster, report = Cluster(rank=1, world_size=2, source="HOROVOD"), Report(as_json=True)
    assert not check_addresses(cluster, report)
    [problem] = report.found["problems"]
    assert "Rank 1: the name of its host, 'node-b', stands for 127.0.1.1 there" in problem
    assert problem.endswith("Change that line of /etc/hosts there to: <its address> node-b")
    assert check_addresses(Cluster(world_size=2, local_size=2, source="HOROVOD"), Report(as_json=True))


def test_free_ports_and_known_hosts_are_none() -> None:
    report = Report(as_json=True)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    assert check_addresses(Cluster.from_addresses([*addresses, "[::1]:2222"], 0), report)
    assert check_addresses(Cluster(world_size=2, local_size=2, source="HOROVOD"), report)
    assert report.close() == 0


def test_what_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # The time is over when the fast one has answered.
    times = iter([0.0, 0.0, 60.0])
    monkeypatch.setattr(addresses, "time", SimpleNamespace(monotonic=lambda: next(times)))
    never = threading.Event()
    wrong = in_parallel(lambda item: never.wait(1000) if item == "slow" else None, ["fast", "slow"], timeout_seconds=60)
    never.set()
    assert wrong == {"slow": "no answer in 60 s"}
