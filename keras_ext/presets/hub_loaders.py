"""Makes KerasHub's converters of model hubs' files read lazily.

The module of KerasHub's loader is found by name, so that KerasHub is not imported here; tests check it against each
release.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from keras_ext.presets.safetensors import SafetensorsFile
from strategies import layer_api

_LOADERS = "src.utils.transformers.safetensor_utils"


@contextlib.contextmanager
def read_lazily(task_class: Any, differences: layer_api.Differences | None = None) -> Iterator[list[SafetensorsFile]]:
    """Context manager: KerasHub's loaders of files in the format of safetensors get lazy tensors.

    Args:
        task_class: a class of KerasHub.
        differences: if given, what differs is added here, and converting goes on with the next weight.

    Yields:
        The files that are opened.
    """
    opened: list[SafetensorsFile] = []
    package = _package_of(task_class)
    try:
        module: Any = importlib.import_module(f"{package}.{_LOADERS}")
    except ModuleNotFoundError:
        yield opened
        return

    class Opening:
        """Takes the place of the package ``safetensors`` in the module."""

        @staticmethod
        def safe_open(path: Any, **kwargs: Any) -> SafetensorsFile:
            del kwargs
            opened.append(SafetensorsFile(path))
            return opened[-1]

    loader = module.SafetensorLoader
    before = module.safetensors, loader.port_weight
    if before[0] is not None:
        # KerasHub's own error says what to install.
        module.safetensors = Opening
    if differences is not None:
        loader.port_weight = _noting(loader.port_weight, differences)
    try:
        yield opened
    finally:
        module.safetensors, loader.port_weight = before


def _package_of(task_class: Any) -> str:
    """Returns the package of KerasHub, from which a class, or its base if a user wrote it, comes."""
    names = [base.__module__.partition(".")[0] for base in task_class.__mro__]
    return next((name for name in names if name == "keras_hub"), names[0])


def _noting(port_weight: Callable[..., None], differences: layer_api.Differences) -> Callable[..., None]:
    """Returns KerasHub's `port_weight` so that it notes what differs, and raises nothing."""

    def noting(self: Any, keras_variable: Any, hf_weight_key: str, hook_fn: Any = None) -> None:
        expected = tuple(keras_variable.shape)
        name = f"{hf_weight_key} (of {keras_variable.path})"
        try:
            shape = tuple(self.get_tensor(hf_weight_key).shape)
        except KeyError:
            differences.missing[name] = expected
            return
        try:
            port_weight(self, keras_variable, hf_weight_key, hook_fn)
        except Exception:
            differences.misshapen[name] = expected, shape
            return
        if differences.misshapen.pop(keras_variable.path, None) is not None:
            # Noted when it was assigned, under the variable's name alone.
            differences.misshapen[name] = expected, shape

    return noting
