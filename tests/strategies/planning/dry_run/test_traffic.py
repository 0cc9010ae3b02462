"""Bytes between ranks, by closed formulas."""

from __future__ import annotations

import pytest

from strategies.planning.dry_run.stage_sizes import StageSizes
from tests.strategies.planning.dry_run.jobs import dry_run


def test_replicas_on_two_hosts() -> None:
    run = dry_run(8)
    size = 4 * StageSizes(run.job, 0).parameters
    each = 2 * 7 / 8 * size
    # A ring over both hosts leaves each of them once.
    assert run.traffic.inside == pytest.approx({"data": 6 * each})
    assert run.traffic.between == pytest.approx({"data": 2 * each})
    assert run.traffic.links == pytest.approx({(0, 1): each, (1, 0): each})
    assert run.traffic.leaving() == pytest.approx({0: each, 1: each})
    assert run.traffic.groups_of_host == {0: {"data": 1}, 1: {"data": 1}}


def test_shards_inside_hosts() -> None:
    run = dry_run(2, 1, 4)
    assert set(run.traffic.inside) == {"tensor"}
    assert set(run.traffic.between) == {"data"}
    assert run.traffic.groups_of_host == {0: {"data": 4}, 1: {"data": 4}}


def test_stages_on_several_hosts() -> None:
    run = dry_run(1, 3, 4, num_microbatches=5)
    sizes = StageSizes(run.job, 0)
    [message, table] = [4 * 5 * sizes.boundary_bytes, 4 * 4.0 * sizes.table_parameters]
    assert run.traffic.links == pytest.approx(
        {
            (0, 1): message,
            (1, 0): message,
            (1, 2): message,
            (2, 1): message,
            (0, 2): table,
            (2, 0): table,
        }
    )
    assert run.traffic.busiest is not None
    assert run.traffic.busiest[1] == max(message, table)


def test_one_rank_sends_nothing() -> None:
    run = dry_run()
    assert (run.traffic.inside, run.traffic.between, run.traffic.busiest) == ({}, {}, None)
