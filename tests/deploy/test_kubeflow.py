"""The manifests of Kubeflow: parts that refer to each other agree, and the commands are accepted.

`make deploy-tests` checks the fields against the published models of the operators.
"""

import argparse
import shlex
from typing import Any

import pytest

from strategies.launching import flags as launcher_flags
from tests import platforms
from tests.deploy.check_models import closed, differences
from tests.deploy.manifests import DEPLOY, load
from tests.examples.test_commands import program_and_flags


def manifests(name: str) -> list[dict[str, Any]]:
    return load(DEPLOY / "kubeflow" / name)


def test_the_train_job() -> None:
    runtime, job = manifests("trainjob.yaml")
    trainer, reference = job["spec"]["trainer"], job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    # The names by which the operator finds the container and the job that trains.
    assert (replicated["name"], [each["name"] for each in pod["containers"]]) == ("node", ["node"])
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    # Kubernetes takes a policy for failed pods with this restart policy only.
    assert pod["restartPolicy"] == "Never"
    [rule] = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [75]
    assert trainer["command"] == ["strategies-launch"]
    flags: argparse.Namespace = launcher_flags.parser().parse_args(trainer["args"])
    # Nodes, ranks and address are the platform's.
    assert (flags.nnodes, flags.node_rank, flags.nproc_per_node, flags.master_addr) == (None, None, None, None)
    assert flags.grace_seconds < pod["terminationGracePeriodSeconds"]
    command = shlex.join(["python", flags.script, *flags.script_args])
    assert program_and_flags(command)[0] == "examples/mnist/main.py"


def test_the_mpi_job() -> None:
    [job] = manifests("mpijob.yaml")
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    [container] = launcher["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    num_ranks = worker["replicas"] * spec["slotsPerWorker"]
    assert words[words.index("-np") + 1] == str(num_ranks)
    assert words[words.index("--hostfile") + 1] == platforms.mpi_job_launcher(1)["OMPI_MCA_orte_default_hostfile"]
    assert program_and_flags(shlex.join(words))[0] == "examples/mnist/main.py"
    # The operator starts sshd only in a container without command and arguments.
    assert not {"command", "args"} & worker["template"]["spec"]["containers"][0].keys()


def test_the_tf_job() -> None:
    [job] = manifests("tfjob.yaml")
    [(kind, replica)] = job["spec"]["tfReplicaSpecs"].items()
    [container] = replica["template"]["spec"]["containers"]
    assert (kind, container["name"], replica["restartPolicy"]) == ("Worker", "tensorflow", "OnFailure")
    command = shlex.join([*container["command"], *container["args"]])
    assert program_and_flags(command)[0] == "examples/mnist/main.py"


@pytest.mark.parametrize(
    ("given", "taken", "expected"),
    [
        ({"a": [{"b": 1}]}, {"a": [{"b": 1.0, "c": 2}]}, []),
        ({"a": 1}, {}, [".a: 1 became None"]),
        ({"a": {"b": "x"}}, {"a": None}, [".a.b: 'x' became None"]),
        ({"a": [1, 2]}, {"a": [1]}, [".a[0]: 1 became None", ".a[1]: 2 became None"]),
    ],
)
def test_fields_that_a_model_drops_are_found(given: Any, taken: Any, expected: list[str]) -> None:
    assert differences(given, taken) == expected


def test_schemas_refuse_fields_that_they_do_not_list() -> None:
    schema = {"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": True}}}
    assert closed(schema) == {
        "type": "object",
        "properties": {"a": {"x-kubernetes-int-or-string": True, "type": ["integer", "string"]}},
        "additionalProperties": False,
    }
    open_schema = {"properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": True}
    assert closed(open_schema)["additionalProperties"] is True
