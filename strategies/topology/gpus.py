"""The physical GPUs that processes use, by ids that are valid on all processes, and the check that none is shared."""

from __future__ import annotations

import collections
import ctypes
import json
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

#: Set to 1 on all processes, it lets them share GPUs, as in a smoke test on a machine with one GPU.
SHARING_VARIABLE = "KERAS_STRATEGIES_SHARED_GPUS"

_logger = logging.getLogger(__name__)


def sharing_is_allowed() -> bool:
    """Returns True if the environment allows processes to share GPUs."""
    return os.environ.get(SHARING_VARIABLE, "") not in ("", "0")


def claim() -> str:
    """Returns the GPUs that this process uses, as text for :func:`refuse_shared` of every process."""
    return json.dumps(
        {
            "gpus": used_gpus(),
            "host": socket.gethostname(),
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "may share": sharing_is_allowed(),
        }
    )


def refuse_shared(claims: Sequence[str]) -> None:
    """Raises if processes use the same GPU: they would run out of its memory, and NCCL rejects two ranks on one GPU.

    Args:
        claims: the claims of all processes, by rank; equal on all of them, so that all of them raise or none.

    Raises:
        ValueError: two processes use the same GPU, and not all of them allow it.
    """
    parsed = [json.loads(text) for text in claims]
    users: dict[str, list[int]] = collections.defaultdict(list)
    for rank, each in enumerate(parsed):
        for gpu in each["gpus"]:
            users[gpu].append(rank)
    shared = {gpu: ranks for gpu, ranks in users.items() if len(ranks) > 1}
    if not shared:
        return
    named = "; ".join(
        f"ranks {', '.join(map(str, ranks))} on {parsed[ranks[0]]['host']} use {gpu}" for gpu, ranks in shared.items()
    )
    if all(each["may share"] for each in parsed):
        _logger.warning("Processes share GPUs, as %s has it: %s.", SHARING_VARIABLE, named)
        return
    raise ValueError(
        f"Each process needs GPUs of its own: {named}. Start at most as many processes per node as it has GPUs, and "
        "let all of them see all GPUs, of which each takes its share by its local rank; or have the launcher set "
        f"CUDA_VISIBLE_DEVICES to other GPUs for each. To share them nevertheless, set {SHARING_VARIABLE}=1 on all "
        f"processes. Received, by rank: CUDA_VISIBLE_DEVICES {[each['CUDA_VISIBLE_DEVICES'] for each in parsed]}"
    )


def used_gpus() -> list[str]:
    """Returns an id for each GPU that TensorFlow may use in this process: its UUID, or a name if CUDA reports none."""
    gpus = tf.config.get_visible_devices("GPU")
    return [_gpu_id(int(gpu.name.rpartition(":")[2])) for gpu in gpus]


def _gpu_id(ordinal: int) -> str:
    return _uuid(ordinal) or _name(ordinal)


def _uuid(ordinal: int) -> str | None:
    """Returns CUDA's id of a GPU visible to this process, or of a MIG instance; None if CUDA reports none.

    TensorFlow numbers GPUs as CUDA does, but `tf.config.experimental.get_device_details` has only their model.
    """
    try:
        cuda: Any = ctypes.CDLL("libcuda.so.1")
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        failed = failed or cuda.cuDeviceGetUuid_v2(ctypes.byref(uuid), device)
    except (OSError, AttributeError):
        return None
    digits = bytes(uuid).hex()
    return None if failed else "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _name(ordinal: int) -> str:
    """Returns a name made of the host and the GPU's number on it."""
    given = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    return f"GPU {given[ordinal] if ordinal < len(given) else ordinal} of {socket.gethostname()}"
