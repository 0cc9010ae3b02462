"""GPUs that are newer than the CUDA of the installed TensorFlow: XLA cannot compile for them.

XLA writes PTX of the version of that CUDA. For a GPU that needs a later version, LLVM ends the process when the first
function is compiled: seen by users of TensorFlow 2.21 with compute capability 12.0
(https://github.com/tensorflow/tensorflow/issues/111958). Not run on such a GPU by us.
"""

from __future__ import annotations

import re

import tensorflow as tf

from strategies.cuda_version import tensorflow_cuda_version

#: The first CUDA, by the compute capability for which it compiles. Source: NVIDIA's release notes of PTX.
_FIRST_CUDA = {
    (10, 0): (12, 8),
    (10, 1): (12, 8),
    (10, 3): (12, 9),
    (11, 0): (13, 0),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}
_KNOWN_TO_ALL = (9, 0)


def reason_against_xla() -> str | None:
    """Returns why XLA cannot compile for a GPU that this process sees, as a clause; None if it can for all of them.

    Example: "XLA of TensorFlow 2.21.0, which is built with CUDA 12.5.1, cannot compile for a GPU of compute capability
    12.0 (NVIDIA GeForce RTX 5090)".
    """
    for gpu in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability")
        if capability is None or capability <= _KNOWN_TO_ALL:
            continue
        cuda = tensorflow_cuda_version()
        if not _compiles(capability, cuda):
            return (
                f"XLA of TensorFlow {tf.__version__}, which is built with CUDA {cuda}, cannot compile for a GPU of "
                f"compute capability {capability[0]}.{capability[1]} ({details.get('device_name', gpu.name)})"
            )
    return None


def _compiles(capability: tuple[int, int], cuda: str | None) -> bool:
    first = _FIRST_CUDA.get(capability)
    numbers = tuple(int(number) for number in re.findall(r"\d+", cuda or "")[:2])
    return first is not None and numbers >= first
