"""Strategies that train Keras 3 models on TensorFlow across devices and processes, with the numbers of one device."""

import importlib
from typing import Any

#: The version of the distribution, which pyproject.toml reads here.
__version__ = "0.1.0"

# TensorFlow takes seconds to import, and some modules of this package, such as the launcher and the installation of
# Horovod, do not need it. So each name is imported on first use. `__init__.pyi` tells type checkers the same.
_MODULES = {
    "CentralStorageStrategy": "strategies.central_storage",
    "Cluster": "strategies.topology.cluster",
    "ComparedValue": "strategies.comparison",
    "Comparison": "strategies.comparison",
    "DeviceMesh": "strategies.topology.mesh",
    "DifferenceWarning": "strategies.batches.row_warnings",
    "DistributedError": "strategies.control_plane",
    "Finding": "strategies.engine.strategy",
    "HorovodStrategy": "strategies.horovod",
    "MirroredStrategy": "strategies.mirrored",
    "MultiWorkerMirroredStrategy": "strategies.multi_worker_mirrored",
    "ParameterServerStrategy": "strategies.parameter_server",
    "SecondsWaited": "strategies.steps.waiting",
    "bytes_per_device": "strategies.replica.memory",
    "exact": "strategies.exactness",
    "gather_rows": "strategies.steps.row_gathers",
    "global_rows": "strategies.steps.row_gathers",
    "load_on_all": "strategies.saving.restoring",
    "measure_communication": "strategies.steps.waiting",
    "peak_bytes_per_device": "strategies.replica.memory",
    "seconds_waited": "strategies.steps.waiting",
    "strict": "strategies.batches.row_warnings",
    "sum_accumulated": "strategies.saving.restoring",
}
_SUBMODULES = ("elastic",)

__all__ = sorted([*_MODULES, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
