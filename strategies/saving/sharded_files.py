"""The files of one sharded checkpoint in a folder of its own: each rank writes one, and rank 0 the index.

A rank's file comes with the index of its parts, written after it and atomically, so that rank 0 knows that the file is
complete. Rank 0 waits for the indices of all, and writes the index of the folder.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strategies.atomic_file import atomic_file
from strategies.saving import safetensors_file
from strategies.saving.sharded_index import Index, Part, Tensor, from_json, merged, to_json
from strategies.saving.write_items import WriteItem, own_arrays, shape_and_dtype

INDEX = "model.safetensors.index.json"
#: In the header of a rank's file: its tensors may be parts, named so, which only the index puts together.
FORMAT = "keras-strategies"
# Other processes make the files, on a file system that may show them late: there is no event to wait for.
_POLL_SECONDS = 0.005


def file_of(rank: int, num_ranks: int) -> str:
    """Returns the name of a rank's file, numbered from 1 as those of model hubs."""
    return f"model-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def index_of(file: str) -> str:
    """Returns the name of the index of the parts in a file."""
    return f"{file}.json"


@dataclasses.dataclass(frozen=True)
class RankFile:
    """The file that one rank writes: its arrays, and their places in the tensors.

    Attributes:
        name: the name of the file.
        arrays: the arrays of the parts, by the parts' names in the file.
        index: the tensors with the parts that this file holds, without checksums.
    """

    name: str
    arrays: Mapping[str, np.ndarray]
    index: Index

    @classmethod
    def from_items(cls, name: str, values: Mapping[str, Any], items: Sequence[WriteItem], rank: int) -> RankFile:
        """Returns the file of a rank, with the elements that the rank writes as they are now.

        Args:
            name: the name of the file.
            values: the tensors: variables, split weights or arrays.
            items: the write items of all ranks.
            rank: this rank.

        Raises:
            ValueError: the rank does not own a variable that it is to write.
        """
        arrays = own_arrays(items, rank)
        by_tensor: dict[str, list[int]] = {}
        for position, item in enumerate(items):
            by_tensor.setdefault(item.name, []).append(position)
        own: dict[str, np.ndarray] = {}
        index: dict[str, Tensor] = {}
        for tensor, positions in by_tensor.items():
            found = []
            for number, position in enumerate(positions):
                if position not in arrays:
                    continue
                item = items[position]
                part = tensor if len(positions) == 1 else f"{tensor}@{number + 1}of{len(positions)}"
                own[part] = arrays[position]
                found.append(Part(name, part, item.starts, item.shape, item.begin, item.end))
            if found:
                index[tensor] = Tensor(*shape_and_dtype(values[tensor]), tuple(found))
        return cls(name, own, index)

    def write(self, folder: Path, form: str = FORMAT) -> None:
        """Writes the file and then the index of its parts.

        Args:
            folder: the folder.
            form: the name of the format in the file's header.

        Raises:
            OSError: a file cannot be written.
            ValueError: the format has no such dtype.
        """
        checksums = safetensors_file.write(folder / self.name, self.arrays, {"format": form})
        index = {
            name: dataclasses.replace(
                tensor, parts=tuple(dataclasses.replace(p, crc32=checksums[p.name]) for p in tensor.parts)
            )
            for name, tensor in self.index.items()
        }
        with atomic_file(folder / index_of(self.name)) as file:
            file.write_text(to_json(index))


def finish(folder: Path, num_ranks: int, is_given_up: Callable[[], bool]) -> None:
    """Writes the index of a folder when the files of all ranks are complete. Rank 0 calls it.

    Files may appear late on a folder that several machines share.

    Args:
        folder: the folder.
        num_ranks: the number of ranks.
        is_given_up: returns True once it is known that another rank could not write.

    Raises:
        OSError: the index cannot be written.
        ValueError: the files do not belong together, or `is_given_up`.
    """
    indices = []
    for rank in range(num_ranks):
        path = folder / index_of(file_of(rank, num_ranks))
        while not path.exists():
            if is_given_up():
                raise ValueError(f"{path} did not appear.")
            time.sleep(_POLL_SECONDS)
        indices.append(from_json(path.read_text()))
    with atomic_file(folder / INDEX) as file:
        file.write_text(to_json(merged(indices)))
    for rank in range(num_ranks):
        (folder / index_of(file_of(rank, num_ranks))).unlink(missing_ok=True)


def read_sharded_index(folder: Path) -> dict[str, Tensor]:
    """Returns the index of a folder.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    try:
        return from_json((folder / INDEX).read_text())
    except ValueError as error:
        raise ValueError(f"{folder / INDEX}: {error}") from error
