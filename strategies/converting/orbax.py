"""Opens checkpoints of Orbax, the library for programs with JAX: a tree of arrays, each stored as zarr.

``_METADATA`` lists the tree; the arrays are read with tensorstore, slice by slice, without JAX or Orbax.

Source: the files that ``orbax-checkpoint`` 0.12.8 writes, with and without OCDBT, and the pages of tensorstore on the
drivers of "ocdbt", "zarr" and "zarr3". Tested in ``tests/strategies/converting/test_orbax.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strategies.replica.stored_array import Box

METADATA = "_METADATA"
# In the folder of a checkpoint, whose items may have numbers in their names as well.
_OF_CHECKPOINT = "_CHECKPOINT_METADATA"
# A part of the names of folders that are not complete.
_UNFINISHED = ".orbax-checkpoint-tmp"


def find_tree(folder: Path) -> Path | None:
    """Returns the folder of a tree of arrays: the given one, its only item, or that of its newest step; or None.

    Raises:
        ValueError: several items have arrays.
    """
    if (folder / METADATA).exists():
        return folder
    items = _with_trees(folder, "*")
    if not (folder / _OF_CHECKPOINT).exists():
        # A step is named "10", or "step_10", and is a tree or has its items below.
        steps = {*items, *(item.parent for item in _with_trees(folder, "*/*"))}
        newest = max(steps, key=_number, default=None)
        if newest is not None and _number(newest) >= 0:
            return find_tree(newest)
    items = [item for item in items if any(map(_is_array, _metadata(item)["tree_metadata"].values()))]
    if len(items) > 1:
        raise ValueError(f"{folder} has several trees of arrays. Pass one of {', '.join(map(str, sorted(items)))}.")
    return items[0] if items else None


def _with_trees(folder: Path, pattern: str) -> list[Path]:
    return [found.parent for found in folder.glob(f"{pattern}/{METADATA}") if _UNFINISHED not in str(found)]


def _number(folder: Path) -> int:
    """Returns the number at the end of a folder's name, -1 if there is none."""
    found = re.search(r"(?:^|_)(\d+)$", folder.name)
    return int(found[1]) if found else -1


def _metadata(folder: Path) -> Mapping[str, Any]:
    try:
        read = json.loads((folder / METADATA).read_text())
        for leaf in read["tree_metadata"].values():
            leaf["value_metadata"]["value_type"], [key["key"] for key in leaf["key_metadata"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / METADATA} is damaged: {type(error).__name__}: {error}.") from error
    return read


def _is_array(leaf: Mapping[str, Any]) -> bool:
    """Returns False for text, None and empty containers."""
    value = leaf["value_metadata"]
    return not value.get("skip_deserialize", False) and value["value_type"] != "string"


def open_tree(folder: Path) -> dict[str, Any]:
    """Returns the arrays of a tree by the keys on the path to each, joined by "/".

    Args:
        folder: as `find_tree` returns it.

    Raises:
        ValueError: tensorstore is not installed, arrays are damaged, or two have one name.
        OSError: the list of arrays cannot be read.
    """
    metadata, last = _metadata(folder), _LastBlock()
    try:
        import tensorstore
    except ImportError as error:
        raise ValueError(
            f"{folder} is a checkpoint of Orbax, whose arrays the library tensorstore reads. It is not installed here: "
            "pip install tensorstore"
        ) from error
    opening = {}
    for leaf in filter(_is_array, metadata["tree_metadata"].values()):
        keys = [str(key["key"]) for key in leaf["key_metadata"]]
        name = "/".join(keys)
        if name in opening:
            raise ValueError(f"{folder} has two arrays of one name, {name!r}: a key has a '/' in it.")
        opening[name] = tensorstore.open(_spec(folder, metadata, ".".join(keys)), open=True, read=True)
    found = {}
    for name, future in opening.items():
        try:
            found[name] = _Array(f"{folder}: {name}", future.result(), last)
        except (ValueError, OSError) as error:
            raise _unreadable(f"{folder}: {name}", error) from error
    return found


def _spec(folder: Path, metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns tensorstore's description of a stored array."""
    root = folder.absolute()
    store: dict[str, Any] = {"driver": "file", "path": f"{root}/{name}/"}
    if metadata.get("use_ocdbt", True):
        store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{root}/"}, "path": f"{name}/"}
    return {
        "driver": "zarr3" if metadata.get("use_zarr3", False) else "zarr",
        "kvstore": store,
        # Orbax may leave out what is zero; else an absent chunk is one that was lost.
        "fill_missing_data_reads": not metadata.get("store_array_data_equal_to_fill_value", False),
    }


def _unreadable(name: str, error: Exception) -> ValueError:
    # After the reason comes the whole description of the array.
    return ValueError(f"{name} cannot be read: {str(error).split(' [tensorstore_spec')[0]}")


class _LastBlock:
    """The chunks that were read last, of one of the arrays: chunks are compressed, and may be as large as an array."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value = np.zeros(0)

    def read(self, store: Any, where: Box) -> np.ndarray:
        """Returns a box of chunks."""
        key = (id(store), tuple((each.start, each.stop) for each in where))
        if key != self._key:
            # First free the one before.
            self._key, self._value = None, np.zeros(0)
            self._key, self._value = key, np.asarray(store[where].read().result())
        return self._value


class _Array:
    """An array as a dataset. What is read of it is a box of whole chunks, which is kept for the next boxes in it."""

    def __init__(self, name: str, store: Any, last: _LastBlock) -> None:
        self.shape = tuple(int(size) for size in store.shape)
        self.dtype: np.dtype[Any] = store.dtype.numpy_dtype
        self._name, self._store, self._last = name, store, last
        self._chunk = tuple(store.chunk_layout.read_chunk.shape or self.shape)

    def __getitem__(self, where: Box) -> np.ndarray:
        if any(each.start >= each.stop for each in where):
            return np.zeros([max(0, each.stop - each.start) for each in where], self.dtype)
        around = tuple(
            slice(each.start // chunk * chunk, min(-(-each.stop // chunk) * chunk, size))
            for each, chunk, size in zip(where, self._chunk, self.shape, strict=True)
        )
        try:
            block = self._last.read(self._store, around)
        except (ValueError, OSError) as error:
            raise _unreadable(self._name, error) from error
        inside = tuple(
            slice(each.start - outer.start, each.stop - outer.start) for each, outer in zip(where, around, strict=True)
        )
        return np.array(block[inside])
