"""The index of a sharded checkpoint: for each tensor its shape, dtype, and the parts that files hold of it.

A part is a range of the flattened elements of a box of the tensor, in the order of the box: so a tensor that is split
along a dim, a shard of the elements of a weight, and a shard of such a split tensor are all described alike. Pure data.

Source: the index of files in the format of safetensors, ``model.safetensors.index.json``, as model hubs have it; there
each tensor is in one file. ``weight_map`` is the same; ``tensors`` adds parts, and checksums.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strategies.replica.stored_array import Box, boxes

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a tensor, as one tensor of a file.

    Attributes:
        file: the name of the file.
        name: the name of the part in the file.
        starts: where the box begins in the tensor, along each dim.
        shape: the shape of the box.
        begin: the first of the box's flattened elements.
        end: the element after the last one.
        crc32: the checksum of the part's bytes.
    """

    file: str
    name: str
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    begin: int
    end: int
    crc32: int = 0

    def boxes(self) -> Iterator[tuple[Box, int]]:
        """Yields boxes of the tensor that make up the part, each with its first element's position in the part."""
        position = 0
        for box in boxes(self.shape, self.begin, self.end):
            moved = tuple(
                slice(start + own.start, start + own.stop) for start, own in zip(self.starts, box, strict=True)
            )
            yield moved, position
            position += math.prod(each.stop - each.start for each in box)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the checkpoint.

    Attributes:
        shape: the shape of the whole tensor.
        dtype: Keras' name of its dtype.
        parts: its parts, which together are the tensor.
    """

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]

    def is_whole(self) -> bool:
        """Returns True if the parts have as many elements as the tensor."""
        return sum(part.end - part.begin for part in self.parts) == math.prod(self.shape)


Index = Mapping[str, Tensor]


def merged(indices: Sequence[Index]) -> dict[str, Tensor]:
    """Returns the index of all tensors, given for each file the tensors with the parts that it holds.

    Raises:
        ValueError: a tensor has other shapes or dtypes in other files, or parts are missing; with its name.
    """
    found: dict[str, Tensor] = {}
    for index in indices:
        for name, tensor in index.items():
            known = found.get(name)
            if known is not None and (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(
                    f"Ranks save tensors of one name that differ. Received: {name!r} of shape {known.shape} "
                    f"({known.dtype}), and of shape {tensor.shape} ({tensor.dtype})."
                )
            parts = tensor.parts if known is None else (*known.parts, *tensor.parts)
            found[name] = Tensor(tensor.shape, tensor.dtype, parts)
    unfinished = [name for name, tensor in found.items() if not tensor.is_whole()]
    if unfinished:
        raise ValueError(f"Parts of tensors are in no file. Received: {', '.join(map(repr, sorted(unfinished)))}.")
    return found


def to_json(index: Index) -> str:
    """Returns an index as text, with a checksum of its own."""
    tensors = {name: dataclasses.asdict(tensor) for name, tensor in sorted(index.items())}
    files: dict[str, Any] = {}
    for name, tensor in sorted(index.items()):
        own = list(dict.fromkeys(part.file for part in tensor.parts))
        files[name] = own[0] if len(own) == 1 else own
    body = json.dumps(tensors, separators=(",", ":"))
    head = {"format": FORMAT, "crc32": zlib.crc32(body.encode())}
    return json.dumps({"metadata": head, "weight_map": files})[:-1] + f', "tensors": {body}}}'


def from_json(text: str) -> dict[str, Tensor]:
    """Returns the index of a text.

    Raises:
        ValueError: the text is damaged, or of another format.
    """
    try:
        read = json.loads(text)
        body = json.dumps(read["tensors"], separators=(",", ":"))
        head = read["metadata"]
        tensors = {name: _tensor(each) for name, each in read["tensors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"The index is damaged: {type(error).__name__}: {error}.") from error
    if head.get("format") != FORMAT:
        raise ValueError(f"The index has format {head.get('format')!r}; this version reads {FORMAT}.")
    if zlib.crc32(body.encode()) != head.get("crc32"):
        raise ValueError("The index is damaged: its checksum is not that of its tensors.")
    return tensors


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    parts = (
        Part(**{**part, "starts": tuple(part["starts"]), "shape": tuple(part["shape"])}) for part in entry["parts"]
    )
    return Tensor(tuple(entry["shape"]), entry["dtype"], tuple(parts))
