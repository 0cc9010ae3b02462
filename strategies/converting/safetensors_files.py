"""Opens files in the format of safetensors that together have a model: those of model hubs, and of torch's writer.

``torch.distributed.checkpoint.HuggingFaceStorageWriter`` writes parts of tensors, boxes, under the tensor's name into
the files of several ranks; a file's header says where each part begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from strategies.saving.safetensors_file import SafetensorsReader
from strategies.saving.sharded_files import FORMAT
from strategies.saving.sharded_index import Part, Tensor
from strategies.saving.sharded_tensor import ShardedTensor

#: The entry of torch's writer in the metadata of a header.
_PLACES = "DCP_SHARDING_INFO"


def open_hub_index(path: Path) -> Mapping[str, Any]:
    """Returns the tensors of the files that an index of a model hub lists.

    Raises:
        ValueError: a file is damaged, or lacks tensors; with their names.
        OSError: a file cannot be read.
    """
    listed = json.loads(path.read_text())["weight_map"]
    found = open_files(path.with_name(file) for file in sorted(set(listed.values())))
    missing = sorted(set(listed) - set(found))
    if missing:
        raise ValueError(f"{path} names tensors that its files do not have. Received: {', '.join(missing)}.")
    return found


def open_folder(folder: Path) -> dict[str, ShardedTensor] | None:
    """Returns the tensors of all files in a folder that has no index; None if there are no files.

    Raises:
        ValueError: see `of_files`; or a rank has written a file into a sharded checkpoint that is not complete.
        OSError: a file cannot be read.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if any(SafetensorsReader(path).metadata.get("format") == FORMAT for path in paths):
        raise ValueError(f"{folder} is a sharded checkpoint without an index: it is not complete.")
    return open_files(paths) if paths else None


def open_files(paths: Iterable[Path]) -> dict[str, ShardedTensor]:
    """Returns the tensors of files, each of which has whole tensors or, written by torch, parts of them.

    Raises:
        ValueError: a file is damaged, or parts of a tensor are missing or there twice; with the tensors' names.
        OSError: a file cannot be read.
    """
    readers = {path.name: SafetensorsReader(path) for path in paths}
    shapes: dict[str, list[int]] = {}
    parts: dict[str, list[Part]] = {}
    dtypes: dict[str, str] = {}
    for file, reader in readers.items():
        places = json.loads(reader.metadata.get(_PLACES, "{}"))
        for name, tensor in reader.tensors.items():
            starts = places.get(name, {}).get("saved_offsets", [0] * len(tensor.shape))
            ends = [start + size for start, size in zip(starts, tensor.shape, strict=True)]
            shapes[name] = [max(pair) for pair in zip(ends, shapes.get(name, ends), strict=True)]
            parts.setdefault(name, []).append(Part(file, name, tuple(starts), tensor.shape, 0, tensor.size))
            dtypes[name] = tensor.dtype.name
    found = {name: Tensor(tuple(shapes[name]), dtypes[name], tuple(parts[name])) for name in parts}
    wrong = sorted(name for name, tensor in found.items() if not tensor.is_whole())
    if wrong:
        raise ValueError(
            f"Files are missing, or tensors of one name are in several files. Received: the files "
            f"{', '.join(readers)}, which do not make up {', '.join(wrong)}."
        )
    return {name: ShardedTensor(tensor, readers.__getitem__) for name, tensor in found.items()}
