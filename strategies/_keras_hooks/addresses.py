"""The modules and classes of Keras that this package hooks into or reads, wherever the installed release has them.

Nothing else in the package imports ``keras.src``. The addresses below are those of Keras 3.15. ``keras_names.toml``
lists what is elsewhere since another release (``moved``), and the functions that are wrapped or overridden, with their
signatures.

If something is not at its address, importing this module raises one error that names everything that is missing. In a
release of Keras that this package was not tested with, it also names the functions whose signatures have changed, and
further places from which Keras would call a function past what is wrapped around it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras

from strategies._keras_hooks.signatures import differing, signature
from strategies.versions import TESTED, is_at_least, is_tested

_NAMES = tomllib.loads(Path(__file__).with_name("keras_names.toml").read_text())
_missing: list[str] = []
#: From this release on, only nightly builds were tested: importing this module compares everything, which takes 70 ms.
_NIGHTLY = "3.16"


def located(address: str, release: str = keras.__version__) -> str:
    """Returns where a release of Keras has what Keras 3.15 has at an address, such as "keras.src.trainers.trainer"."""
    for since, moved in _NAMES["moved"].items():
        if is_at_least(release, since):
            old = next((old for old in moved if f"{address}.".startswith(f"{old}.")), None)
            address = address if old is None else f"{moved[old]}{address.removeprefix(old)}"
    return address


def functions(kind: str, release: str = keras.__version__) -> Mapping[str, str]:
    """Returns the signatures of functions of a release of Keras, by their addresses in it.

    Args:
        kind: "wrapped" or "overridden".
        release: the release.
    """
    added = _NAMES["since_keras"]
    known = {name: text for name, text in _NAMES[kind].items() if is_at_least(release, added.get(name, "3"))}
    for since, changed in _NAMES["changed"].items():
        if is_at_least(release, since):
            known |= {name: text for name, text in changed.items() if name in known}
    return MappingProxyType({located(name, release): text for name, text in known.items()})


def found_at(address: str) -> Any:
    """Returns the module, class or function at an address of the installed release; None if there is none."""
    parts = address.split(".")
    for end in range(len(parts), 0, -1):
        found: Any
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = vars(found).get(part) if isinstance(found, type) else getattr(found, part, None)
        return found
    return None


def _at(address: str) -> Any:
    found = found_at(located(address))
    if found is None:
        _missing.append(located(address))
    return found


# Backend
backend = _at("keras.src.backend")
CommonVariable = _at("keras.src.backend.common.variables.Variable")
global_state = _at("keras.src.backend.common.global_state")
in_stateless_scope = _at("keras.src.backend.common.stateless_scope.in_stateless_scope")
tf_core = _at("keras.src.backend.tensorflow.core")
tf_nn = _at("keras.src.backend.tensorflow.nn")
tf_numpy = _at("keras.src.backend.tensorflow.numpy")
tf_random = _at("keras.src.backend.tensorflow.random")
TFOptimizer = _at("keras.src.backend.tensorflow.optimizer.TFOptimizer")
TFEpochIterator = _at("keras.src.backend.tensorflow.trainer.TFEpochIterator")
TensorFlowTrainer = _at("keras.src.backend.tensorflow.trainer.TensorFlowTrainer")
# Training
CallbackList = _at("keras.src.callbacks.callback_list.CallbackList")
BaseOptimizer = _at("keras.src.optimizers.base_optimizer.BaseOptimizer")
ArrayDataAdapter = _at("keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter")
data_adapters = _at("keras.src.trainers.data_adapters")
PyDatasetAdapter = _at("keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter")
TFDatasetAdapter = _at("keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter")
Trainer = _at("keras.src.trainers.trainer.Trainer")
model_supports_jit = _at("keras.src.trainers.trainer.model_supports_jit")
# Layers, losses, metrics
BatchNormalization = _at("keras.src.layers.normalization.batch_normalization.BatchNormalization")
DTypePolicy = _at("keras.src.dtype_policies.dtype_policy.DTypePolicy")
Functional = _at("keras.src.models.functional.Functional")
keras_loss = _at("keras.src.losses.loss")
keras_losses = _at("keras.src.losses.losses")
keras_quantizers = _at("keras.src.quantizers")
quantizers_module = _at("keras.src.quantizers.quantizers")
reduction_metrics = _at("keras.src.metrics.reduction_metrics")
seed_generator = _at("keras.src.random.seed_generator")
DotNotTrackScope = _at("keras.src.utils.tracking.DotNotTrackScope")
# Files
legacy_h5_format = _at("keras.src.legacy.saving.legacy_h5_format")
saving_api = _at("keras.src.saving.saving_api")
saving_lib = _at("keras.src.saving.saving_lib")
serialization_lib = _at("keras.src.saving.serialization_lib")

#: None before Keras 3.15.
MultiOptimizer = found_at(located("keras.src.optimizers.multi_optimizer.MultiOptimizer"))
#: None before Keras 3.16. A package that has the functions of `tf_core` as well; Keras calls them here or there.
tf_ops = found_at("keras.src.backend.tensorflow.ops")


def changes() -> tuple[list[str], list[str]]:
    """Returns the addresses at which nothing is, and one line for each signature or further place that is new."""
    known = {**functions("wrapped"), **functions("overridden")}
    objects = {name: found_at(name) for name in known}
    found = {name: signature(value) for name, value in objects.items() if value is not None}
    gone = {*_missing, *(name for name, value in objects.items() if value is None)}
    # A module or class that is gone stands for everything in it.
    first = [name for name in gone if not any(name.startswith(f"{other}.") for other in gone)]
    wrapped = {name: objects[name] for name in functions("wrapped")}
    return sorted(first), [*differing(known, found), *unwrapped(wrapped)]


def unwrapped(functions: Mapping[str, Any]) -> list[str]:
    """Returns one line for each further place in Keras that has one of the functions, and that is not known.

    A call of the function there passes by what is wrapped around it.

    Args:
        functions: functions that are wrapped, by their addresses.
    """
    originals = {id(each): name for name, value in functions.items() for each in _chain(value)}
    known = {*functions, *(located(name) for name in _NAMES["unwrapped"])}
    found = []
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.src.") and module is not None:
            places = {f"{name}.{attribute}": originals.get(id(value)) for attribute, value in vars(module).items()}
            found += [
                f"{place} is {function} as well, and calls there would not be noticed"
                for place, function in places.items()
                if function and place not in known
            ]
    return sorted(found)


def _chain(value: Any) -> Iterator[Any]:
    """Yields a function and those around which it is wrapped; nothing for values that several names may share."""
    while inspect.isfunction(value):
        yield value
        value = getattr(value, "__wrapped__", None)


def _check() -> None:
    is_known = is_tested("keras", keras.__version__) and not is_at_least(keras.__version__, _NIGHTLY)
    gone, changed = (_missing, []) if is_known else changes()
    if gone or changed:
        low, high = TESTED["keras"]
        high = _NIGHTLY if is_at_least(high, _NIGHTLY) else high
        lines = [*(f"{address} does not exist" for address in gone), *changed]
        raise RuntimeError(
            f"keras-strategies does not work with Keras {keras.__version__}, which has changed what it hooks into: "
            f"{'; '.join(lines)}. Install Keras >= {low}, < {high}, or a newer keras-strategies."
        )


_check()
