"""Parts of tensors: their boxes as literal tables, and tensors put together from parts cut at random."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from strategies.saving import safetensors_file
from strategies.saving.sharded_index import Index, Part, Tensor, from_json, merged, to_json
from strategies.saving.sharded_tensor import damaged_tensors, sharded_tensors

S = slice


def part(begin: int, end: int, shape: tuple[int, ...], starts: tuple[int, ...], file: str = "f") -> Part:
    return Part(file, f"{starts} {begin}", starts, shape, begin, end)


def test_boxes() -> None:
    # The second column block of a tensor, and of it the elements 1 to 6: the end of a row, a row, and a beginning.
    assert list(part(1, 6, (3, 2), (0, 4)).boxes()) == [
        ((S(0, 1), S(5, 6)), 0),
        ((S(1, 3), S(4, 6)), 1),
    ]
    assert list(part(0, 1, (), ()).boxes()) == [((), 0)]
    assert list(part(2, 2, (4,), (0,)).boxes()) == []


@pytest.mark.parametrize("seed", range(8))
def test_any_box_of_any_parts(seed: int, tmp_path: Path) -> None:
    """A tensor is split along a dim, each shard into ranges, over three files; boxes of it are read."""
    random = np.random.default_rng(seed)
    shape = tuple(int(size) for size in random.integers(1, 6, size=int(random.integers(0, 4))))
    value = random.normal(size=shape).astype("float32")
    dim = int(random.integers(0, len(shape))) if shape else 0
    cuts = sorted({0, *random.integers(0, shape[dim] + 1, 2).tolist(), shape[dim]}) if shape else [0, 1]
    arrays: dict[str, dict[str, np.ndarray]] = {f"f{i}": {} for i in range(3)}
    parts = []
    for first, last in itertools.pairwise(cuts):
        where = tuple(S(first, last) if axis == dim else S(0, size) for axis, size in enumerate(shape))
        shard = value[where]
        ends = sorted({0, *random.integers(0, shard.size + 1, 2).tolist(), shard.size})
        for begin, end in itertools.pairwise(ends):
            each = part(begin, end, shard.shape, tuple(w.start for w in where), f"f{random.integers(0, 3)}")
            parts.append(each)
            arrays[each.file][each.name] = shard.reshape(-1)[begin:end].copy()
    for file, own in arrays.items():
        safetensors_file.write(tmp_path / file, own, {})
    index = {"w": Tensor(shape, "float32", tuple(parts))}
    assert index["w"].is_whole()
    tensor = sharded_tensors(tmp_path, from_json(to_json(index)))["w"]
    for _ in range(10):
        pairs = [sorted(random.integers(0, size + 1, 2).tolist()) for size in shape]
        where = tuple(S(*pair) for pair in pairs)
        np.testing.assert_array_equal(tensor[where], value[where])


def test_indices_of_ranks_are_merged() -> None:
    one: Index = {"w": Tensor((4, 2), "float32", (part(0, 4, (4, 1), (0, 0)),))}
    two: Index = {"w": Tensor((4, 2), "float32", (part(0, 4, (4, 1), (0, 1), "g"),))}
    both = merged([one, two])
    assert both["w"].parts == (*one["w"].parts, *two["w"].parts)
    read = json.loads(to_json(both))
    # As in the indices of model hubs, where all parts of a tensor are in one file.
    assert read["weight_map"] == {"w": ["f", "g"]}
    with pytest.raises(ValueError, match=r"Parts of tensors are in no file. Received: 'w'\."):
        merged([one])
    with pytest.raises(ValueError, match=r"'w' of shape \(4, 2\) \(float32\), and of shape \(4, 3\) \(float32\)"):
        merged([one, {"w": Tensor((4, 3), "float32", two["w"].parts)}])


def test_a_damaged_index() -> None:
    text = to_json({"w": Tensor((2,), "float32", (part(0, 2, (2,), (0,)),))})
    assert from_json(text)["w"].shape == (2,)
    for damaged in (text[:-1], text.replace('"end":2', '"end":1'), text.replace('"format": 1', '"format": 2'), "[]"):
        with pytest.raises(ValueError, match="The index"):
            from_json(damaged)


def test_each_flipped_bit_is_found(tmp_path: Path) -> None:
    arrays = {name: np.arange(3, dtype="float32") + i for i, name in enumerate("ab")}
    checksums = safetensors_file.write(tmp_path / "f", arrays, {"k": "v"})
    index = {name: Tensor((3,), "float32", (Part("f", name, (0,), (3,), 0, 3, checksums[name]),)) for name in arrays}
    whole = (tmp_path / "f").read_bytes()
    assert damaged_tensors(tmp_path, index) == []
    header = len(whole) - 24
    random = np.random.default_rng(0)
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << int(random.integers(0, 8))
        (tmp_path / "f").write_bytes(flipped)
        found = damaged_tensors(tmp_path, index)
        if position >= header:
            assert len(found) == 1
            assert found[0].startswith("a:" if position < header + 12 else "b:")
        elif not found:
            # A text that concerns no tensor.
            tensors = sharded_tensors(tmp_path, index)
            for name, array in arrays.items():
                np.testing.assert_array_equal(tensors[name][S(0, 3),], array)
    (tmp_path / "f").unlink()
    assert [line.partition(":")[0] for line in damaged_tensors(tmp_path, index)] == ["a", "b"]
    assert damaged_tensors(tmp_path, index, lambda name: name != "f") == []
