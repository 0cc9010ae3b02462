"""The version of CUDA that the installed TensorFlow is built with."""

import importlib.util
import re
from pathlib import Path

#: The files of TensorFlow's wheels that name it. In TensorFlow 2.22 only the header does.
_NAMED = {
    "python/platform/build_info.py": r"'cuda_version', '([\d.]+)'",
    "include/third_party/gpus/cuda/cuda_config.h": r'TF_CUDA_VERSION "([\d.]+)"',
}


def tensorflow_cuda_version() -> str | None:
    """Returns the CUDA version of the installed TensorFlow, as in "12.5.1"; None without TensorFlow or CUDA."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return None
    # Read, not imported: TensorFlow takes seconds to start.
    files = {Path(spec.origin).parent / name: pattern for name, pattern in _NAMED.items()}
    found = (re.search(pattern, file.read_text()) for file, pattern in files.items() if file.exists())
    return next((match[1] for match in found if match), None)
