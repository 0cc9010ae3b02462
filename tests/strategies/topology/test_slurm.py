"""Lists of hosts and counts as Slurm writes them, and ports that steps do not share."""

import pytest

from strategies.topology.slurm import FIRST_PORT, expand_counts, expand_hosts, first_port


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("one", ("one",)),
        ("node[01-03,7],gpu1", ("node01", "node02", "node03", "node7", "gpu1")),
        ("a,b-2,c.d", ("a", "b-2", "c.d")),
        ("r[1-2]n[08-10]x", ("r1n08x", "r1n09x", "r1n10x", "r2n08x", "r2n09x", "r2n10x")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("[1-2]", ("1", "2")),
    ],
)
def test_names(text: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-2", "n1-2]", "n[3-1]", "n[a]", "n[]", "n[[1]]", "a,,b"])
def test_refused_names(text: str) -> None:
    with pytest.raises(ValueError, match="Received"):
        expand_hosts(text)


def test_counts() -> None:
    assert expand_counts("2(x3),1") == (2, 2, 2, 1)
    assert expand_counts("4") == (4,)
    for text in ("", "2x3", "a", "2(x)"):
        with pytest.raises(ValueError, match="Received"):
            expand_counts(text)


def test_ports() -> None:
    assert first_port({}) == FIRST_PORT == 8888
    steps = [first_port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}) for job in range(8) for step in (0, 1)]
    assert len(set(steps)) == len(steps)
    assert first_port({"SLURM_JOBID": "3", "SLURM_STEPID": "1"}) == first_port(
        {"SLURM_JOB_ID": "3", "SLURM_STEP_ID": "1"}
    )
    # Job numbers have seven digits on large clusters; our launcher's port, 29500, is never among them.
    assert all(8888 <= first_port({"SLURM_JOB_ID": str(job)}) <= 25272 - 32 for job in range(9_999_000, 9_999_999))
