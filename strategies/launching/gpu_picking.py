"""The choice of GPUs that nobody else uses, by the memory in use, as nvidia-smi shows it. Standard library only."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TIMEOUT_SECONDS = 30
_FIELDS = ("index", "uuid", "memory.used", "memory.total")
_MEBIBYTE = 2**20
# A driver keeps up to some hundred MiB on an idle GPU; a process that computes has more.
_MOST_IDLE_BYTES = 1024 * _MEBIBYTE
_MOST_IDLE_SHARE = 0.1


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Args:
        index, uuid: its number in the order of the bus, and its id.
        used_bytes, total_bytes: its memory; None if the GPU does not answer.
    """

    index: int
    uuid: str
    used_bytes: int | None
    total_bytes: int | None

    @property
    def problem(self) -> str:
        """Why it is not picked, in words; empty if it is free."""
        if self.used_bytes is None or not self.total_bytes:
            return "does not answer"
        if self.used_bytes > min(_MOST_IDLE_BYTES, _MOST_IDLE_SHARE * self.total_bytes):
            return f"{self.used_bytes / 2**30:.1f} of {self.total_bytes / 2**30:.1f} GiB in use"
        return ""


def pick_gpus(count: int, environment: Mapping[str, str]) -> str:
    """Returns the ids of free GPUs, those with the least memory in use, as a value of CUDA_VISIBLE_DEVICES.

    Ids, because CUDA and nvidia-smi may number GPUs differently. They are in the order of the bus.

    Args:
        count: the number of GPUs.
        environment: a CUDA_VISIBLE_DEVICES there limits the choice.

    Raises:
        ValueError: fewer are free, or nvidia-smi cannot be asked; the message lists the others.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    gpus = _visible(_listed(environment), visible)
    free = sorted((gpu for gpu in gpus if not gpu.problem), key=lambda gpu: (gpu.used_bytes or 0, gpu.index))
    if len(free) < count:
        others = "; ".join(f"GPU {gpu.index}: {gpu.problem}" for gpu in gpus if gpu.problem)
        raise ValueError(
            f"of {len(gpus)} GPUs{'' if visible is None else f' in CUDA_VISIBLE_DEVICES={visible}'} only {len(free)} "
            f"are free{f' ({others})' if others else ''}. End what uses them "
            f"(nvidia-smi names the processes), or ask for fewer. Received: {count}"
        )
    return ",".join(gpu.uuid for gpu in sorted(free[:count], key=lambda gpu: gpu.index))


def _listed(environment: Mapping[str, str]) -> list[Gpu]:
    """Returns all GPUs of this machine."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        # A GPU that is lost makes nvidia-smi fail, after it has listed the others.
        listed = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"nvidia-smi cannot be asked which GPUs are free: {error}") from None
    rows = csv.reader(listed.stdout.splitlines(), skipinitialspace=True)
    gpus = [_gpu(row) for row in rows if len(row) == len(_FIELDS) and row[0].strip().isdecimal()]
    if not gpus:
        said = " ".join((listed.stderr or listed.stdout).split())[:300]
        raise ValueError(f"nvidia-smi lists no GPU{f': {said}' if said else ''}")
    return gpus


def _gpu(row: Sequence[str]) -> Gpu:
    index, uuid, used, total = (field.strip() for field in row)
    return Gpu(int(index), uuid, _bytes(used), _bytes(total))


def _bytes(mebibytes: str) -> int | None:
    """Returns the bytes of a field; None for "[Unknown Error]", "[N/A]" and the like."""
    return int(mebibytes) * _MEBIBYTE if mebibytes.isdecimal() else None


def _visible(gpus: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Returns the GPUs among which CUDA_VISIBLE_DEVICES lets one choose."""
    if visible is None:
        return list(gpus)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if wrong := [name for name in names if name.startswith("MIG-")]:
        raise ValueError(f"parts of GPUs (MIG) cannot be picked. Received: CUDA_VISIBLE_DEVICES={wrong[0]}")
    # As CUDA does, a beginning of an id is enough.
    return [gpu for gpu in gpus if any(name == str(gpu.index) or _starts(gpu.uuid, name) for name in names)]


def _starts(uuid: str, name: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)
