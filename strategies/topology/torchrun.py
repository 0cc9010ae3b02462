"""Jobs that torchrun or a launcher like it started, which do not say where the other processes are. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def refuse_torchrun(variables: Mapping[str, str]) -> None:
    """Raises an error if only torch's variables name several processes: each would train the whole job by itself.

    torchrun, ``accelerate launch``, ``deepspeed`` and Databricks' TorchDistributor set them. `strategies.launch` sets
    them, too, but also ``TF_CONFIG``, which is read first.

    Args:
        variables: the environment, in which no launcher that this package reads has left a rank.

    Raises:
        ValueError: ``RANK``, ``MASTER_ADDR``, and a ``WORLD_SIZE`` above 1.
    """
    rank, size = variables.get("RANK", ""), variables.get("WORLD_SIZE", "")
    if "MASTER_ADDR" in variables and rank.isdigit() and size.isdigit() and int(size) > 1:
        raise ValueError(
            "RANK and WORLD_SIZE are those of a job of several processes that torchrun or a launcher like it started. "
            "They do not name the addresses of the processes, so each would train by itself. Start the program with "
            "`python -m strategies.launch`, which takes torchrun's flags, or set TF_CONFIG; for a job of this one "
            f"process, unset WORLD_SIZE. Received: RANK={rank}, WORLD_SIZE={size}, no TF_CONFIG."
        )
