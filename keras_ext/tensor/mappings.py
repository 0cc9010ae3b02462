"""Mappings of tensors to the shards of a layer and back, forward and backward.

The two pairs of Megatron-LM: ``copy`` (f) gives one tensor to all shards, and adds up their gradients; ``reduce`` (g)
adds up the shards' tensors, and gives one gradient to all. ``scatter`` and ``gather`` cut and join along a dimension,
each the gradient of the other. For sequence parallelism ``all_gather`` and ``reduce_scatter`` take and return a tensor
per shard.

Shards may belong to several processes. A list of tensors has one entry for each shard that this process owns, in their
order. Between layers, a tensor that is not cut is the same on all processes. It is in the part of the first shard that
a process owns; there the tensors of the process' shards are combined, and then sent in one message. Every op, including
those of gradients, is on the device of its part. No two ops use the same tensor, because TensorFlow would add up their
gradients on another device.

Source: Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras import ops, tree

from strategies import layer_api
from strategies.evenly import even_bounds


@dataclass(frozen=True)
class Shards:
    """The parts of a replica over which layers are split.

    Make one with `present`, where the layer's variables are made.

    Attributes:
        parts: all parts of the replica.
        members: the parts that hold one shard each, in order.
        owned: the numbers of this process' shards; of all shards if it owns none, so that it can infer shapes.
        between: the mappings to the processes of other shards; None if there are none, or if only shapes matter.
    """

    parts: layer_api.ReplicaParts = field(repr=False)
    members: tuple[int, ...]
    owned: tuple[int, ...]
    between: layer_api.AxisMappings | None = field(default=None, repr=False, compare=False)

    @classmethod
    def present(cls) -> Shards:
        """Returns the shards of a layer made in the current scope: one in each part along the mesh axis "tensor"."""
        parts = layer_api.replica_parts()
        # A layer without a position on another axis has a copy at each position: this process computes with its own.
        local_part = parts.local_part()
        members = parts.along("tensor") if local_part is None else parts.mesh.group(local_part, "tensor")
        owned = tuple(index for index, part in enumerate(members) if part in parts.owned)
        if not owned:
            return cls(parts, members, tuple(range(len(members))))
        return cls(parts, members, owned, parts.between("tensor") if len(owned) < len(members) else None)

    @property
    def count(self) -> int:
        """The number of shards on all processes."""
        return len(self.members)

    @property
    def main_part(self) -> int:
        """The part that holds the tensors that are not cut."""
        return self.members[self.owned[0]]

    def run(self, index: int, function: Callable[..., Any], *inputs: Any) -> Any:
        """Returns ``function(*inputs)``, computed, like its gradient, on the device of the owned shard `index`."""
        return self.parts.run(self.members[index], function, *inputs)

    def run_nested(self, index: int, function: Callable[..., Any], inputs: list[Any]) -> Any:
        """Returns ``function(*inputs)`` as `run` does, for nested lists and dicts of tensors and variables."""

        def unpacked(*flat: Any) -> Any:
            return function(*tree.pack_sequence_as(inputs, list(flat)))

        return self.run(index, unpacked, *tree.flatten(inputs))

    def run_each(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        """Returns ``function(*inputs)`` for each owned shard, on its device; its inputs are one of each list."""
        return [self.run(i, function, *inputs) for i, *inputs in zip(self.owned, *lists, strict=True)]

    def select_owned(self, values: Sequence[Any]) -> list[Any]:
        """Returns the values of the owned shards, from a list with one value for each shard."""
        return [values[i] for i in self.owned]

    def copy(self, value: Any) -> list[Any]:
        """Copies a tensor to all shards. Gradient: the sum of the shards' gradients.

        Shapes: `S` -> `S` each.
        """
        value = value if self.between is None else self.between.copied(value)
        return self.parts.fan_out(value, self.main_part, len(self.owned))

    def reduce(self, values: Sequence[Any]) -> Any:
        """Returns the sum of a tensor per shard, added in their order. Gradient: the same for all shards.

        Shapes: `S` each -> `S`.
        """
        total = self._on_main_part(add_up, values)
        return total if self.between is None else self.between.summed(total)

    def scatter(self, value: Any, dim: int = -1, sizes: Sequence[int] | None = None) -> list[Any]:
        """Cuts a tensor along `dim` into one part for each shard. Gradient: the parts' gradients, joined.

        Shapes: `[.., d, ..]` -> `[.., d_i, ..]` each, of the given `sizes`, or of equal ones.
        """
        if self.between is not None:
            dim %= len(value.shape)
            bounds = self._bounds(value, dim) if sizes is None else [0, *itertools.accumulate(sizes)]
            value = self.between.part(value, dim, self._process_bounds(bounds))
            sizes = None if sizes is None else self.select_owned(sizes)
        if len(self.owned) == 1:
            return [value]
        where: Any = len(self.owned) if sizes is None else list(itertools.accumulate(sizes))[:-1]
        return list(self.parts.run(self.main_part, lambda whole: ops.split(whole, where, axis=dim), value))

    def gather(self, values: Sequence[Any], dim: int = -1, size: Any = None) -> Any:
        """Joins the shards' tensors along `dim`. Gradient: each shard's part.

        Shapes: `[.., d_i, ..]` each -> `[.., sum of d_i, ..]`.

        Args:
            values: one for each owned shard.
            dim: along which they are joined.
            size: of the joined tensor along `dim`, from which all d_i follow, as in :meth:`split_evenly`; None if all
                are equal. Used only where shards belong to several processes.
        """
        own = self._on_main_part(_joiner(dim), values)
        if self.between is None:
            return own
        dim %= len(own.shape)
        return self.between.joined(own, dim, self._process_bounds(self._bounds_of_pieces(own, dim, size)))

    def split_evenly(self, value: Any, dim: int) -> list[Any]:
        """Cuts a tensor along `dim`, of any size, into one part for each shard. Gradient: the parts' gradients, joined.

        Shapes: `[.., d, ..]` -> `[.., d_i, ..]` each, with sizes that differ by one at most, the larger ones first.
        """
        if self.between is None:
            return (
                [value]
                if self.count == 1
                else self.parts.run(self.main_part, lambda whole: _split_evenly(whole, dim, self.count), value)
            )
        dim %= len(value.shape)
        bounds = self._bounds(value, dim)
        return self._cut_locally(self.between.part(value, dim, self._process_bounds(bounds)), dim, bounds)

    def all_gather(self, values: Sequence[Any], dim: int, size: Any = None) -> list[Any]:
        """Joins all shards' tensors along `dim`, for each shard. Gradient: :meth:`reduce_scatter` of the gradients.

        Shapes: `[.., d_i, ..]` each -> `[.., sum of d_i, ..]` each. Arguments are those of :meth:`gather`.
        """
        if self.between is not None:
            own = self._on_main_part(_joiner(dim), values)
            dim %= len(own.shape)
            bounds = self._process_bounds(self._bounds_of_pieces(own, dim, size))
            return self.parts.fan_out(self.between.gathered(own, dim, bounds), self.main_part, len(self.owned))
        copies = [
            self.parts.fan_out(value, member, self.count) for value, member in zip(values, self.members, strict=True)
        ]
        return [self.run(i, _joiner(dim), *(copy[i] for copy in copies)) for i in range(self.count)]

    def reduce_scatter(self, values: Sequence[Any], dim: int) -> list[Any]:
        """Sums a tensor per shard, and cuts the sum along `dim`. Gradient: :meth:`all_gather` of the parts' gradients.

        Shapes: `[.., d, ..]` each -> `[.., d_i, ..]` each, as :meth:`split_evenly` cuts.
        """
        if self.count == 1:
            return list(values)
        if self.between is not None:
            total = self._on_main_part(add_up, values)
            dim %= len(total.shape)
            bounds = self._bounds(total, dim)
            return self._cut_locally(self.between.scattered(total, dim, self._process_bounds(bounds)), dim, bounds)
        cut = [
            self.run(i, lambda whole: _split_evenly(whole, dim, self.count), value) for i, value in enumerate(values)
        ]
        return [self.run(i, add_up, *(pieces[i] for pieces in cut)) for i in range(self.count)]

    def gather_all(self, values: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Returns some tensors of every shard, of all processes, in the part `main_part`. Gradient: each shard's own.

        Shapes: `[S, ...]` each, of one shape and dtype -> `[S, ...]` for each of all shards.
        """
        if self.between is None:
            return list(values)
        number = len(values[0])

        def unpacked(rows: Any) -> list[Any]:
            return [each for row in ops.unstack(rows, self.count, axis=0) for each in ops.unstack(row, number, axis=0)]

        rows = self.gather(self.run_each(lambda *own: ops.stack([ops.stack(own)]), *zip(*values, strict=True)), 0)
        flat = self.parts.run(self.main_part, unpacked, rows)
        return [flat[i * number : (i + 1) * number] for i in range(self.count)]

    def size_along(self, value: Any, dim: int) -> Any:
        """Returns the size of a tensor along `dim`; None unless several processes have shards, where it is needed."""
        return None if self.between is None else ops.shape(value)[dim]

    def _on_main_part(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Returns ``function`` of the owned shards' tensors, computed in `main_part`; a single tensor unchanged."""
        return values[0] if len(self.owned) == 1 else self.parts.run(self.main_part, function, *values)

    def _bounds(self, value: Any, dim: int) -> list[Any]:
        """Returns the positions along `dim` at which the shards' parts of a tensor begin, and the end of the last."""
        return even_bounds(ops.shape(value)[dim], self.count, ops.minimum)

    def _bounds_of_pieces(self, own: Any, dim: int, size: Any) -> list[Any]:
        """Returns the bounds of all shards in the whole tensor; this process has the part `own`."""
        if size is None:
            size = ops.shape(own)[dim] * (self.count // len(self.owned))
        return even_bounds(size, self.count, ops.minimum)

    def _process_bounds(self, bounds: Sequence[Any]) -> Sequence[Any]:
        """Returns the bounds of the processes' parts, given those of the shards' parts."""
        return bounds[:: len(self.owned)]

    def _cut_locally(self, value: Any, dim: int, bounds: Sequence[Any]) -> list[Any]:
        """Cuts this process' part of a tensor into its shards' parts."""
        if len(self.owned) == 1:
            return [value]
        first = self.owned[0]
        own = [bound - bounds[first] for bound in bounds[first : self.owned[-1] + 2]]
        return list(self.parts.run(self.main_part, lambda part: _cut(part, dim, own), value))


def add_up(*values: Any) -> Any:
    """Returns the sum of tensors."""
    # In a fixed order, so that the rounding does not change from run to run.
    total = values[0]
    for value in values[1:]:
        total = ops.add(total, value)
    return total


def _split_evenly(value: Any, dim: int, count: int) -> list[Any]:
    dim %= len(value.shape)
    return _cut(value, dim, even_bounds(ops.shape(value)[dim], count, ops.minimum))


def _cut(value: Any, dim: int, bounds: Sequence[Any]) -> list[Any]:
    if value.shape[dim] is not None:
        return list(ops.split(value, bounds[1:-1], axis=dim))
    # The length is known at run time only. Gradients of slices are padded and added up, which costs more.
    before = (slice(None),) * dim
    return [value[(*before, slice(start, end))] for start, end in itertools.pairwise(bounds)]


def _joiner(dim: int) -> Callable[..., Any]:
    return lambda *values: ops.concatenate(values, axis=dim)
