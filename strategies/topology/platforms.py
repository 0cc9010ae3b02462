"""The machines of a job on a managed platform, read from the environment. Pure: standard library only.

These platforms start one process on each machine and set variables that name all machines, not TF_CONFIG. Sources:
the list of variables of SageMaker's training toolkit 5.1, and Vertex AI's page on distributed training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

#: The port that SageMaker's TensorFlow containers write into TF_CONFIG for MultiWorkerMirroredStrategy.
SAGEMAKER_PORT = 8890
_PRIMARY, _WORKERS, _SERVERS, _EVALUATORS = (f"workerpool{i}" for i in range(4))


@dataclass(frozen=True)
class Machines:
    """The machines that train together.

    Args:
        addresses: the "host:port" of each machine; the first one leads.
        index: the position of this machine; None for one that only evaluates.
        source: "SAGEMAKER" or "CLUSTER_SPEC" (Vertex AI).

    Example:

        machines = Machines.from_environment({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"})
        assert machines == Machines(("algo-1:8890", "algo-2:8890"), 1, "SAGEMAKER")
    """

    addresses: tuple[str, ...]
    index: int | None
    source: str

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Machines | None:
        """Returns the machines that the platform's variables name, or None outside of these platforms.

        Raises:
            ValueError: variables that are malformed, or a job whose machines do not all train.
        """
        return _sagemaker(variables) or _vertex(variables)

    def are_the_workers_of(self, tf_config: str) -> bool:
        """Returns True if a TF_CONFIG describes one process for each of these machines, not ranks of a launcher."""
        try:
            jobs = json.loads(tf_config)["cluster"]
            lists = [jobs.get(name, []) for name in ("chief", "master", "worker")]
            hosts = [_host(address) for addresses in lists for address in addresses]
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return hosts == [_host(address) for address in self.addresses]


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _sagemaker(variables: Mapping[str, str]) -> Machines | None:
    if not variables.get("SM_HOSTS", "").strip():
        return None
    try:
        hosts = json.loads(variables["SM_HOSTS"])
    except json.JSONDecodeError:
        hosts = None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise _error(variables, "SM_HOSTS", "must be a list of host names in JSON", '["algo-1","algo-2"]')
    current = variables.get("SM_CURRENT_HOST", "")
    if current not in hosts or len(set(hosts)) != len(hosts):
        raise ValueError(
            "SM_CURRENT_HOST must be one of the different hosts in SM_HOSTS. SageMaker's toolkit sets both. Received: "
            f"SM_CURRENT_HOST={current!r}, SM_HOSTS={hosts}."
        )
    if variables.get("SM_IS_HETERO", "").strip().lower() == "true":
        raise ValueError(
            "SM_HOSTS names the machines of several instance groups, and not which of them train. Give the estimator "
            "the argument distribution with multi_worker_mirrored_strategy and these groups: its containers then set "
            f"TF_CONFIG. Received: SM_HOSTS={hosts}, SM_IS_HETERO={variables['SM_IS_HETERO']!r}."
        )
    return Machines(tuple(f"{host}:{SAGEMAKER_PORT}" for host in hosts), hosts.index(current), "SAGEMAKER")


def _vertex(variables: Mapping[str, str]) -> Machines | None:
    name = "CLUSTER_SPEC"
    if not variables.get(name, "").strip():
        return None
    example = '{"cluster": {"workerpool0": ["host0:2222"]}, "task": {"type": "workerpool0", "index": 0}}'
    try:
        spec = json.loads(variables[name])
    except json.JSONDecodeError:
        spec = None
    pools, task = (spec.get("cluster"), spec.get("task")) if isinstance(spec, dict) else (None, None)
    if not isinstance(pools, dict) or _PRIMARY not in pools or not isinstance(task, dict):
        # Other programs use this name, too.
        return None
    kind, index = task.get("type"), task.get("index")
    if kind not in pools or isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(pools[kind]):
        raise _error(variables, name, "must contain its task among its worker pools", example)
    if pools.get(_SERVERS):
        raise _error(
            variables, name, f"has parameter servers, which no strategy here uses: leave {_SERVERS} empty", example
        )
    primary, workers = pools[_PRIMARY], pools.get(_WORKERS, [])
    addresses = (*primary, *workers)
    if kind == _EVALUATORS:
        return Machines(addresses, None, name)
    return Machines(addresses, index + (len(primary) if kind == _WORKERS else 0), name)


def _error(variables: Mapping[str, str], name: str, what: str, example: str) -> ValueError:
    return ValueError(f"{name} {what}. Expected something like {example}. Received: {variables[name]}")
