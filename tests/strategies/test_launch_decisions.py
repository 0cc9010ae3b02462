"""The coordinator's decisions, as tables: events of nodes in, commands to nodes out, without processes or sockets."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from strategies.launching.coordinator import Coordinator, Policy
from strategies.launching.messages import (
    Cause,
    Command,
    Ended,
    Event,
    Finish,
    Incident,
    Kind,
    Node,
    Outcome,
    Standstill,
    Start,
    Stop,
    packed,
    unpacked_command,
    unpacked_event,
)
from strategies.launching.verdict import described, exit_code, first_failure

FAILED, DONE, PREEMPTED = Outcome.FAILED, Outcome.DONE, Outcome.PREEMPTED


def node(rank: int, num_nodes: int = 3) -> Node:
    return Node(rank, num_nodes, f"10.0.0.{rank}", (rank * 10 + 1, rank * 10 + 2), f"host{rank}")


def cause(kind: Kind, at: int, status: int = 0) -> Cause:
    return Cause(kind, at, node(at).name, rank=2 * at, pid=7, status=status)


@dataclass
class Job:
    """A job of nodes with two processes each; it keeps the last commands by node."""

    policy: Policy
    num_nodes: int = 3
    last: dict[int, Command] = field(default_factory=dict)
    round: int = 0

    def __post_init__(self) -> None:
        nodes = {rank: node(rank, self.num_nodes) for rank in range(self.num_nodes)}
        self.coordinator = Coordinator(nodes, self.policy)
        self._take(self.coordinator.begin())

    def _take(self, commands: Iterable[tuple[int, Command]]) -> None:
        for rank, command in commands:
            # Commands are sent as JSON.
            assert unpacked_command(json.loads(json.dumps(packed(command)))) == command
            self.last[rank] = command
            if isinstance(command, Start):
                self.round = command.round

    def sends(self, at: int, event: Event) -> None:
        assert unpacked_event(json.loads(json.dumps(packed(event)))) == event
        self.last.clear()
        self._take(self.coordinator.handle(at, event))

    def happens(self, kind: Kind, at: int, status: int = 0, *, urgent: bool = False) -> None:
        self.sends(at, Incident(self.round, cause(kind, at, status), urgent))

    def is_lost(self, at: int) -> None:
        self.last.clear()
        self._take(self.coordinator.lost(at, "silent for 30 s"))

    def ends(self, **outcomes: Outcome) -> None:
        """Ends nodes one after the other; the commands are those after the last."""
        for name, outcome in outcomes.items():
            at = int(name.removeprefix("n"))
            self.sends(at, Ended(self.round, outcome, (at * 10 + 5, at * 10 + 6)))

    @property
    def stops(self) -> dict[int, tuple[bool, float]]:
        assert all(isinstance(command, Stop) for command in self.last.values())
        return {at: (it.terminate, it.grace_seconds) for at, it in self.last.items() if isinstance(it, Stop)}

    @property
    def started(self) -> Start:
        """Returns the start command, which exactly the nodes in it have received."""
        starts = {at: command for at, command in self.last.items() if isinstance(command, Start)}
        (start,) = set(starts.values())
        assert [node.node_rank for node in start.nodes] == sorted(starts)
        return start

    @property
    def verdicts(self) -> dict[int, tuple[str, int]]:
        """Returns the kind of the cause and the exit code for each node that is to return."""
        return {
            at: (command.cause.kind.value if command.cause else "", exit_code(command.cause, at))
            for at, command in self.last.items()
            if isinstance(command, Finish)
        }


def test_success_is_that_of_all() -> None:
    job = Job(Policy())
    assert job.started == Start(0, 0, 0, tuple(map(node, range(3))), 10.0)
    job.ends(n1=DONE, n0=DONE)
    assert job.last == {}
    job.ends(n2=DONE)
    assert job.verdicts == dict.fromkeys(range(3), ("", 0))


@pytest.mark.parametrize(
    ("kind", "at", "status", "codes"),
    [
        (Kind.RANK, 1, 3, {0: 1, 1: 3, 2: 1}),
        (Kind.RANK, 0, -11, {0: 139, 1: 1, 2: 1}),
        (Kind.LATE, 2, 0, {0: 1, 1: 1, 2: 1}),
        (Kind.START, 2, 0, {0: 1, 1: 1, 2: 1}),
        (Kind.SIGNAL, 1, 2, {0: 130, 1: 130, 2: 130}),
    ],
)
def test_the_first_cause_ends_all(kind: Kind, at: int, status: int, codes: dict[int, int]) -> None:
    job = Job(Policy(grace_seconds=7.0))
    job.happens(kind, at, status)
    assert job.stops == dict.fromkeys(range(3), (True, 7.0))
    job.happens(Kind.RANK, 2, 99)
    assert job.last == {}
    job.ends(n0=FAILED, n1=FAILED, n2=DONE)
    assert job.verdicts == {rank: (kind.value, code) for rank, code in codes.items()}


def test_a_node_that_is_gone_ends_the_others() -> None:
    job = Job(Policy())
    job.is_lost(2)
    assert job.stops == {0: (True, 10.0), 1: (True, 10.0)}
    job.is_lost(2)
    job.ends(n0=FAILED, n1=DONE)
    assert job.verdicts == {0: ("node", 1), 1: ("node", 1)}


def test_a_node_that_is_gone_is_not_waited_for() -> None:
    job = Job(Policy())
    job.happens(Kind.RANK, 1, 5)
    job.ends(n0=FAILED, n1=FAILED)
    job.is_lost(2)
    assert job.verdicts == {0: ("rank", 1), 1: ("rank", 5)}


def test_a_second_signal_kills_everywhere() -> None:
    job = Job(Policy(max_restarts=3))
    job.happens(Kind.SIGNAL, 1, 15)
    job.happens(Kind.SIGNAL, 1, 15, urgent=True)
    assert job.stops == dict.fromkeys(range(3), (True, 0.0))


class TestStandstill:
    """No rank of a node runs: those that have not ended are stopped."""

    @staticmethod
    def stands(job: Job, at: int, *, still: bool = True) -> None:
        job.sends(at, Standstill(job.round, cause(Kind.STOPPED, at) if still else None))

    def test_of_one_node_the_others_find_it(self) -> None:
        job = Job(Policy())
        self.stands(job, 1)
        self.stands(job, 0)
        self.stands(job, 1, still=False)
        self.stands(job, 2)
        assert job.last == {}
        job.ends(n0=DONE, n1=DONE)
        assert job.stops == dict.fromkeys(range(3), (True, 10.0))
        job.ends(n2=FAILED)
        assert job.verdicts == dict.fromkeys(range(3), ("stopped", 1))

    def test_of_all_ends_the_round(self) -> None:
        job = Job(Policy(max_restarts=1))
        for at in (2, 0, 1):
            assert job.last == {} or at == 2
            self.stands(job, at)
        assert job.stops == dict.fromkeys(range(3), (True, 2.0))
        job.ends(n0=FAILED, n1=FAILED, n2=FAILED)
        assert "rank 0 on node 0 (host0)" in job.started.reason
        self.stands(job, 1)
        self.stands(job, 2)
        assert job.last == {}
        job.is_lost(0)
        assert all(isinstance(command, Stop) for command in job.last.values())
        job.ends(n1=FAILED, n2=FAILED)
        assert job.verdicts == {1: ("node", 1), 2: ("node", 1)}


class TestRestarts:
    def test_with_new_ports_up_to_the_limit(self) -> None:
        job = Job(Policy(max_restarts=2))
        assert job.started.grace_seconds == 2.0
        for count in (1, 2):
            job.happens(Kind.RANK, 1, 3)
            assert job.stops == dict.fromkeys(range(3), (True, 2.0))
            job.ends(n2=FAILED, n1=FAILED, n0=FAILED)
            start = job.started
            assert (start.round, start.num_restarts, start.max_restarts) == (count, count, 2)
            assert [node.ports for node in start.nodes] == [(5, 6), (15, 16), (25, 26)]
            reason = f"rank 2 on node 1 (host1) failed with exit code 3; restart {count} of 2, with 6 processes."
            assert start.reason == reason
        assert start.grace_seconds == 10.0
        job.happens(Kind.RANK, 1, 3)
        assert set(job.stops.values()) == {(True, 10.0)}
        job.ends(n2=FAILED, n1=FAILED, n0=FAILED)
        assert job.verdicts == {0: ("rank", 1), 1: ("rank", 3), 2: ("rank", 1)}

    def test_a_short_grace_stays_short(self) -> None:
        assert Job(Policy(max_restarts=1, grace_seconds=0.5)).started.grace_seconds == 0.5

    @pytest.mark.parametrize(("min_procs", "goes_on"), [(None, False), (5, False), (4, True), (0, True)])
    def test_with_fewer_nodes(self, min_procs: int | None, goes_on: bool) -> None:
        job = Job(Policy(max_restarts=1, min_procs=min_procs))
        job.is_lost(1)
        assert set(job.stops.values()) == {(True, 2.0 if goes_on else 10.0)}
        job.ends(n0=FAILED, n2=FAILED)
        if goes_on:
            assert [node.node_rank for node in job.started.nodes] == [0, 2]
            expected = "node 1 (host1) is gone: silent for 30 s; restart 1 of 1, with 4 processes."
            assert job.started.reason == expected
        else:
            assert job.verdicts == {0: ("node", 1), 2: ("node", 1)}

    def test_a_node_that_is_gone_counts_even_if_a_rank_failed_before(self) -> None:
        job = Job(Policy(max_restarts=1))
        job.happens(Kind.RANK, 0, 3)
        job.is_lost(1)
        job.ends(n0=FAILED, n2=FAILED)
        assert job.verdicts == {0: ("rank", 3), 2: ("rank", 1)}

    def test_not_after_a_request_to_stop(self) -> None:
        job = Job(Policy(max_restarts=1))
        job.happens(Kind.RANK, 0, 3)
        job.happens(Kind.SIGNAL, 2, 2)
        job.ends(n0=FAILED, n1=FAILED, n2=FAILED)
        assert job.verdicts == {0: ("rank", 3), 1: ("rank", 1), 2: ("rank", 1)}

    def test_not_if_a_rank_cannot_be_started(self) -> None:
        job = Job(Policy(max_restarts=1))
        job.happens(Kind.START, 0)
        job.ends(n0=FAILED, n1=FAILED, n2=FAILED)
        assert set(job.verdicts) == {0, 1, 2}

    def test_what_comes_late_from_the_round_before_is_known(self) -> None:
        job = Job(Policy(max_restarts=2))
        job.happens(Kind.RANK, 0, 3)
        job.ends(n0=FAILED, n1=FAILED, n2=FAILED)
        job.round = 0
        job.happens(Kind.RANK, 1, 3)
        job.ends(n0=FAILED)
        assert job.last == {}

    def test_a_signal_between_two_rounds_is_not_lost(self) -> None:
        job = Job(Policy(max_restarts=2))
        job.happens(Kind.RANK, 0, 3)
        job.ends(n0=FAILED, n1=FAILED, n2=FAILED)
        job.sends(2, Incident(0, cause(Kind.SIGNAL, 2, 15)))
        assert job.stops == dict.fromkeys(range(3), (True, 10.0))
        job.ends(n0=FAILED, n1=FAILED, n2=FAILED)
        assert job.verdicts == dict.fromkeys(range(3), ("signal", 143))


class TestPreemption:
    @pytest.mark.parametrize("ends", [(PREEMPTED, PREEMPTED, PREEMPTED), (PREEMPTED, DONE, PREEMPTED)])
    @pytest.mark.parametrize("max_restarts", [0, 1])
    def test_of_a_rank(self, max_restarts: int, ends: tuple[Outcome, ...]) -> None:
        job = Job(Policy(max_restarts=max_restarts))
        job.happens(Kind.PREEMPTED, 1)
        assert job.stops == dict.fromkeys(range(3), (False, 10.0))
        job.happens(Kind.PREEMPTED, 0)
        assert job.last == {}
        job.ends(n0=ends[0], n1=ends[1], n2=ends[2])
        if max_restarts:
            assert (job.started.round, job.started.num_restarts) == (1, 0)
            assert "preempted (exit code 75); not counted as a restart, with 6 processes." in job.started.reason
        else:
            assert job.verdicts == dict.fromkeys(range(3), ("preempted", 75))

    def test_a_failure_meanwhile_is_a_failure(self) -> None:
        job = Job(Policy(max_restarts=1))
        job.happens(Kind.PREEMPTED, 1)
        job.happens(Kind.RANK, 0, 4)
        assert set(job.stops.values()) == {(True, 2.0)}
        job.ends(n0=FAILED, n1=PREEMPTED, n2=PREEMPTED)
        assert job.started.num_restarts == 1

    @pytest.mark.parametrize("asked", [0, 1])
    @pytest.mark.parametrize("max_restarts", [0, 1])
    def test_of_a_node_ends_the_job(self, asked: int, max_restarts: int) -> None:
        job = Job(Policy(max_restarts=max_restarts))
        job.happens(Kind.SIGNAL, asked, 15)
        job.ends(n0=PREEMPTED, n1=PREEMPTED, n2=PREEMPTED)
        assert job.verdicts == dict.fromkeys(range(3), ("preempted", 75))

    def test_a_rank_that_was_killed_makes_it_an_end_by_a_signal(self) -> None:
        job = Job(Policy())
        job.happens(Kind.SIGNAL, 1, 15)
        job.ends(n0=PREEMPTED, n1=PREEMPTED, n2=FAILED)
        assert job.verdicts == dict.fromkeys(range(3), ("signal", 143))

    @pytest.mark.parametrize("others", [PREEMPTED, FAILED])
    def test_the_others_go_on_without_a_node(self, others: Outcome) -> None:
        job = Job(Policy(max_restarts=0, min_procs=4))
        job.happens(Kind.PREEMPTED, 1)
        job.happens(Kind.SIGNAL, 1, 15)
        job.ends(n0=others, n1=PREEMPTED, n2=others)
        assert job.verdicts == {1: ("preempted", 75)}
        del job.last[1]
        assert [node.node_rank for node in job.started.nodes] == [0, 2]
        assert job.started.num_restarts == 0
        assert "node 1 (host1) was ended by SIGTERM (15) and has left; not counted as" in job.started.reason
        job.is_lost(1)
        assert job.last == {}
        job.ends(n0=DONE, n2=DONE)
        assert job.verdicts == {0: ("", 0), 2: ("", 0)}

    @pytest.mark.parametrize("asked", [(0,), (1, 2), (0, 1)])
    def test_not_without_node_0_or_with_too_few(self, asked: tuple[int, ...]) -> None:
        job = Job(Policy(min_procs=4))
        for rank in asked:
            job.happens(Kind.SIGNAL, rank, 15)
        job.ends(n0=PREEMPTED, n1=PREEMPTED, n2=PREEMPTED)
        assert job.verdicts == dict.fromkeys(range(3), ("preempted", 75))


@pytest.mark.parametrize(
    ("kind", "status", "one_node", "expected"),
    [
        (Kind.RANK, 3, True, "rank 2 (pid 7) failed with exit code 3"),
        (Kind.RANK, 3, False, "rank 2 on node 1 (host1) failed with exit code 3"),
        (Kind.RANK, -11, False, "rank 2 on node 1 (host1) failed with signal SIGSEGV (11)"),
        (Kind.RANK, -9, True, "rank 2 (pid 7) failed with signal SIGKILL (9) (by the system, if memory ran out)"),
        (Kind.SIGNAL, 2, True, "ended by SIGINT (2)"),
        (Kind.SIGNAL, 2, False, "node 1 (host1) was ended by SIGINT (2)"),
        (Kind.PREEMPTED, 0, False, "rank 2 on node 1 (host1) was preempted (exit code 75)"),
        (Kind.NODE, 0, False, "node 1 (host1) is gone: "),
        (Kind.STOPPED, 0, True, "rank 2 (pid 7) "),
    ],
)
def test_causes_in_words(kind: Kind, status: int, one_node: bool, expected: str) -> None:
    assert described(cause(kind, 1, status), one_node=one_node) == expected


@pytest.mark.parametrize(
    ("statuses", "named"), [({1: 1, 2: 1}, 1), ({1: 1, 2: -11}, 2), ({3: -15, 2: -11}, 2), ({5: 2}, 5)]
)
def test_of_several_failures_one_by_a_signal_is_named(statuses: dict[int, int], named: int) -> None:
    assert first_failure(statuses) == named


@pytest.mark.parametrize("received", [{}, {"type": "Start"}, {"type": "Finish", "fields": {"cause": {}}}, {"type": 3}])
def test_other_messages_are_refused(received: dict[str, object]) -> None:
    for unpacked in (unpacked_event, unpacked_command):
        with pytest.raises(ValueError, match="Received"):
            unpacked(received)
