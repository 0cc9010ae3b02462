"""TensorFlow's numbers of threads in a process that shares its node."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from strategies.topology.cluster import Cluster
from strategies.topology.cores import own_cores, threads_are_given
from strategies.topology.threads import limit_threads
from tests.processes import ROOT
from tests.strategies.launching import ENVIRONMENT

SHARED = Cluster(rank=1, world_size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize(
    ("cores", "cores_of_parent", "local_rank", "local_size", "own"),
    [
        # Not bound: the node's cores are divided.
        ((0, 1), (0, 1), 0, 2, (0,)),
        ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4), 1, 2, (2, 3, 4)),
        ((0, 1), (0, 1), 2, 3, (0,)),
        # Bound by the launcher.
        ((2, 3), (0, 1, 2, 3), 1, 2, (2, 3)),
        # A parent that is bound to other cores gives no information.
        ((0, 1), (2, 3), 1, 2, (1,)),
    ],
)
def test_the_cores_of_a_process(
    cores: tuple[int, ...], cores_of_parent: tuple[int, ...], local_rank: int, local_size: int, own: tuple[int, ...]
) -> None:
    assert own_cores(cores, cores_of_parent, local_rank, local_size) == own


def test_a_number_in_the_environment_is_the_users() -> None:
    assert threads_are_given({"OMP_NUM_THREADS": "3"})
    assert threads_are_given({"TF_NUM_INTEROP_THREADS": "3"})
    assert not threads_are_given({"OMP_NUM_THREADS": "", "HOME": "/"})


def test_where_tensorflow_has_started_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.INFO, "strategies"):
        limit_threads(Cluster(), has_started=True)
        assert not caplog.records
        limit_threads(SHARED, has_started=True)
        assert [record.name for record in caplog.records] == ["strategies.topology.threads"]
        assert "was initialised before the strategy" in caplog.text
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
        limit_threads(SHARED, has_started=True)
    assert len(caplog.records) == 1


PROGRAM = """
import json, logging, os, sys
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="line from %(name)s")
cores = sorted(os.sched_getaffinity(0))
import tensorflow as tf
from strategies.topology.cluster import Cluster
from strategies.topology.threads import limit_threads
from strategies._tf_internals import eager_context
threading = tf.config.threading
seen = []
for cluster in (Cluster(), Cluster(world_size=len(cores), local_size=len(cores))):
    limit_threads(cluster, has_started=eager_context.context()._initialized)
    seen.append([threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()])
tf.constant(1)
limit_threads(cluster, has_started=eager_context.context()._initialized)
print(json.dumps([len(cores), seen]))
"""


def test_before_tensorflow_starts_the_cores_are_partitioned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=ENVIRONMENT | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    num_cores, seen = json.loads(done.stdout)
    assert seen == [[0, 0], [1, 2] if num_cores > 1 else [0, 0]]
    # Numbers that have been set are not changed again, and no line is logged for them.
    assert done.stderr.count("line from strategies.topology.threads") == (num_cores > 1)
