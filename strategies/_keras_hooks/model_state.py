"""The tensors of a model's file of weights, by their names in it, without writing or reading a file.

Keras walks through a model and its optimizer, and gives each variable to a store. Here the store keeps the variables
themselves: nothing is read, so that each process can be asked for its parts. In the other direction, the store gives
out arrays that are read when they are assigned.

Tested in ``tests/keras_ext/checkpoints/test_sharded.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strategies._keras_hooks.addresses import saving_lib
from strategies._keras_hooks.lora import adapters_in, kernels_apart
from strategies._keras_hooks.stored_values import reading_in_ranges
from strategies.replica.stored_array import StoredArray

_ADAPTERS = "adapters/"


class _Store(saving_lib.H5IOStore):
    """Keeps what Keras writes, or gives out what it reads: tensors by their paths in a file ``*.weights.h5``.

    Args:
        tensors: the tensors to be read; None to keep what is written.
    """

    def __init__(self, tensors: Mapping[str, Any] | None = None) -> None:
        # The base class would open a file.
        self.mode = "w" if tensors is None else "r"
        self.archive = None
        self.written: dict[str, Any] = {}
        self._prefix = ""
        self._groups: dict[str, dict[str, Any]] = {}
        for name, tensor in (tensors or {}).items():
            group, _, key = name.rpartition("/")
            self._groups.setdefault(group, {})[key] = tensor

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Any = None) -> _Store:
        """Sets the place of the variables that are written next."""
        del metadata
        self._prefix = _group(path)
        return self

    def get(self, path: str) -> _Store:
        """Sets the place of the variables that are read next."""
        self._prefix = _group(path)
        return self

    def has_path(self, path: str) -> bool:
        """Returns True if a path is that of a layer or object with variables."""
        return any(f"{group}/".startswith(f"{path}/") for group in self._groups)

    def close(self) -> None:
        """Does nothing: there is no file."""

    def keys(self) -> list[str]:
        """Returns the keys of the variables at the current place."""
        return list(self._groups.get(self._prefix, ()))

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields the keys and tensors at the current place."""
        return ((key, self[key]) for key in self.keys())

    def values(self) -> Iterator[Any]:
        """Yields the tensors at the current place."""
        return (self[key] for key in self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._groups.get(self._prefix, ())

    def __getitem__(self, key: str) -> Any:
        return StoredArray(self._groups[self._prefix][key])

    def __setitem__(self, key: str, value: Any) -> None:
        self.written[f"{self._prefix}/{key}"] = value


def _group(path: str) -> str:
    """Returns the group of a file that has the variables of the object at a path."""
    return f"{path}/vars" if path else "vars"


def named_state(model: Any) -> dict[str, Any]:
    """Returns all tensors of a model and its optimizer by name: variables, split weights or arrays, which are not read.

    Names are the paths of datasets in ``*.weights.h5``, such as "layers/dense/vars/0" and "optimizer/vars/1", and
    "adapters/0" and so on for LoRA adapters, which Keras' files have only in the kernels.

    Args:
        model: a built model, compiled or not.
    """
    store = _Store()
    with kernels_apart(model):
        saving_lib._save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=set())
    return {**store.written, **{f"{_ADAPTERS}{i}": each for i, each in enumerate(adapters_in(model))}}


def set_named_state(model: Any, tensors: Mapping[str, Any]) -> None:
    """Sets a model's variables, and its optimizer's, to tensors. Each process reads its own parts of them.

    The state of the optimizer stays as it is if there are no tensors of it.

    Args:
        model: a built model.
        tensors: datasets by the names of :func:`named_state`: they have a shape and a dtype, and are read by slices.

    Raises:
        ValueError: Keras' own error, about layers that cannot be loaded.
    """
    own = {name: each for name, each in tensors.items() if not name.startswith(_ADAPTERS)}
    errors: dict[int, Any] = {}
    failed: set[int] = set()
    optimizer = getattr(model, "optimizer", None)
    has_optimizer = optimizer is None or any(name.startswith("optimizer/") for name in own)
    with reading_in_ranges():
        saving_lib._load_state(
            model,
            weights_store=_Store(own),
            assets_store=None,
            inner_path="",
            visited_saveables=set() if has_optimizer else {id(optimizer)},
            failed_saveables=failed,
            error_msgs=errors,
        )
    if failed:
        saving_lib._raise_loading_failure(errors)
    # Loading sets the adapters of a kernel to zeros.
    for i, adapter in enumerate(adapters_in(model)):
        adapter.assign(StoredArray(tensors[f"{_ADAPTERS}{i}"]))
