"""The nodes of the job as a platform's variables describe them: the launcher's defaults. Standard library only.

torchrun takes the default of each flag from PET_ and the flag's name; Kubeflow's Trainer sets these variables on every
node. SageMaker and Vertex AI name their machines in variables of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.topology.platforms import Machines


@dataclass(frozen=True)
class JobDescription:
    """Defaults of the launcher's flags; None where the environment contains none.

    Args:
        nnodes, node_rank, nproc_per_node, master_addr, master_port: as on the command line.
        source: the variables they were read from; "" if there are none.
    """

    nnodes: str | None = None
    node_rank: str | None = None
    nproc_per_node: str | None = None
    master_addr: str | None = None
    master_port: str | None = None
    source: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JobDescription:
        """Returns the description in these variables; torchrun's are taken first.

        Raises:
            ValueError: variables of a platform that are malformed, or a machine that only evaluates.
        """
        names = ("nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port")
        given = {name: environment.get(f"PET_{name.upper()}", "").strip() or None for name in names}
        if any(given.values()):
            return cls(**given, source="PET_" + next(name for name in names if given[name]).upper())
        machines = Machines.from_environment(environment)
        if machines is None:
            return cls()
        if machines.index is None:
            raise ValueError(
                f"this machine only evaluates ({machines.source}): start the program there without the launcher"
            )
        host, _, port = machines.addresses[0].rpartition(":")
        return cls(str(len(machines.addresses)), str(machines.index), None, host, port, machines.source)
