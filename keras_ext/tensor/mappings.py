"""Mappings of tensors to the shards of a layer and back, forward and backward.

The two pairs of Megatron-LM: ``copy`` (f) hands one tensor to all shards, and adds up their gradients; ``reduce`` (g)
adds up what the shards made, and hands one gradient to all. ``scatter`` and ``gather`` cut and join along a dimension,
each the gradient of the other. For sequence parallelism ``all_gather`` and ``reduce_scatter`` take and return a tensor
per shard.

Shards may belong to several processes. A list of tensors has one entry for each shard that this process owns, in their
order. Between layers, a tensor that is not cut is the same on all processes, and lies in the first of the shards' parts
that a process owns: there what its shards have is put together before it is sent to others, in one message. Every op,
of a gradient too, is on the device of the part it belongs to, and no tensor has two users, whose gradients TensorFlow
would add up elsewhere.

Source: Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras import ops

from strategies import layer_api
from strategies.evenly import even_bounds


@dataclass(frozen=True)
class Shards:
    """The parts of a replica over which layers are split.

    Make one with `present`, where the layer's variables are made.

    Attributes:
        parts: of the replica.
        members: those that hold a shard each, in order.
        owned: the shards of this process, by number; all of them where it owns none, so that it can find out shapes.
        between: joins this process to those of the other shards; None where there are none, or shapes only matter.
    """

    parts: layer_api.ReplicaParts = field(repr=False)
    members: tuple[int, ...]
    owned: tuple[int, ...]
    between: layer_api.AxisMappings | None = field(default=None, repr=False, compare=False)

    @classmethod
    def present(cls) -> Shards:
        """The shards of a layer that is made here: one in each part along the mesh axis "tensor"."""
        parts = layer_api.replica_parts()
        # A layer that is at no position on another axis has a copy at each: this process computes with its own.
        home = parts.home()
        members = parts.along("tensor") if home is None else parts.mesh.group(home, "tensor")
        owned = tuple(index for index, part in enumerate(members) if part in parts.owned)
        if not owned:
            return cls(parts, members, tuple(range(len(members))))
        return cls(parts, members, owned, parts.between("tensor") if len(owned) < len(members) else None)

    @property
    def count(self) -> int:
        """The number of shards, of all processes."""
        return len(self.members)

    @property
    def home(self) -> int:
        """The part in which tensors lie that are not cut."""
        return self.members[self.owned[0]]

    def run(self, index: int, function: Callable[..., Any], *inputs: Any) -> Any:
        """Returns ``function(*inputs)``, computed where shard `index` is, one of `owned`, as is its gradient."""
        return self.parts.run(self.members[index], function, *inputs)

    def run_each(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        """Returns what ``function`` makes of each shard's inputs, one of each list, where the shard is."""
        return [self.run(i, function, *inputs) for i, *inputs in zip(self.owned, *lists, strict=True)]

    def of_owned(self, values: Sequence[Any]) -> list[Any]:
        """Those of the owned shards, of a list of what belongs to all of them."""
        return [values[i] for i in self.owned]

    def copy(self, value: Any) -> list[Any]:
        """A tensor to all shards. Gradient: the sum of theirs.

        Shapes: `S` -> `S` each.
        """
        value = value if self.between is None else self.between.copied(value)
        return self.parts.fan_out(value, self.home, len(self.owned))

    def reduce(self, values: Sequence[Any]) -> Any:
        """The sum of a tensor per shard, in their order. Gradient: the same to all.

        Shapes: `S` each -> `S`.
        """
        total = self._at_home(add_up, values)
        return total if self.between is None else self.between.summed(total)

    def scatter(self, value: Any, dim: int = -1, sizes: Sequence[int] | None = None) -> list[Any]:
        """To each shard its part of a tensor along `dim`. Gradient: theirs, joined.

        Shapes: `[.., d, ..]` -> `[.., d_i, ..]` each, of the given `sizes`, or of equal ones.
        """
        if self.between is not None:
            dim %= len(value.shape)
            bounds = self._bounds(value, dim) if sizes is None else [0, *itertools.accumulate(sizes)]
            value = self.between.part(value, dim, self._of_processes(bounds))
            sizes = None if sizes is None else self.of_owned(sizes)
        if len(self.owned) == 1:
            return [value]
        where: Any = len(self.owned) if sizes is None else list(itertools.accumulate(sizes))[:-1]
        return list(self.parts.run(self.home, lambda whole: ops.split(whole, where, axis=dim), value))

    def gather(self, values: Sequence[Any], dim: int = -1, size: Any = None) -> Any:
        """The shards' tensors, joined along `dim`. Gradient: to each its part.

        Shapes: `[.., d_i, ..]` each -> `[.., sum of d_i, ..]`.

        Args:
            values: one for each owned shard.
            dim: along which they are joined.
            size: of what they are joined to, from which all d_i follow, as :meth:`deal` cuts; None where they are
                equal. Asked for where shards belong to several processes only.
        """
        own = self._at_home(_joiner(dim), values)
        if self.between is None:
            return own
        dim %= len(own.shape)
        return self.between.joined(own, dim, self._of_processes(self._bounds_of_pieces(own, dim, size)))

    def deal(self, value: Any, dim: int) -> list[Any]:
        """To each shard its part of a tensor along `dim`, which need not divide. Gradient: theirs, joined.

        Shapes: `[.., d, ..]` -> `[.., d_i, ..]` each, with sizes that differ by one at most, the larger ones first.
        """
        if self.between is None:
            return (
                [value]
                if self.count == 1
                else self.parts.run(self.home, lambda whole: _dealt(whole, dim, self.count), value)
            )
        dim %= len(value.shape)
        bounds = self._bounds(value, dim)
        return self._cut_here(self.between.part(value, dim, self._of_processes(bounds)), dim, bounds)

    def all_gather(self, values: Sequence[Any], dim: int, size: Any = None) -> list[Any]:
        """To each shard all shards' tensors, joined along `dim`. Gradient: :meth:`reduce_scatter` of theirs.

        Shapes: `[.., d_i, ..]` each -> `[.., sum of d_i, ..]` each. Arguments as those of :meth:`gather`.
        """
        if self.between is not None:
            own = self._at_home(_joiner(dim), values)
            dim %= len(own.shape)
            bounds = self._of_processes(self._bounds_of_pieces(own, dim, size))
            return self.parts.fan_out(self.between.gathered(own, dim, bounds), self.home, len(self.owned))
        copies = [
            self.parts.fan_out(value, member, self.count) for value, member in zip(values, self.members, strict=True)
        ]
        return [self.run(i, _joiner(dim), *(copy[i] for copy in copies)) for i in range(self.count)]

    def reduce_scatter(self, values: Sequence[Any], dim: int) -> list[Any]:
        """To each shard its part along `dim` of the sum of a tensor per shard. Gradient: :meth:`all_gather` of theirs.

        Shapes: `[.., d, ..]` each -> `[.., d_i, ..]` each, as :meth:`deal` cuts.
        """
        if self.count == 1:
            return list(values)
        if self.between is not None:
            total = self._at_home(add_up, values)
            dim %= len(total.shape)
            bounds = self._bounds(total, dim)
            return self._cut_here(self.between.scattered(total, dim, self._of_processes(bounds)), dim, bounds)
        cut = [self.run(i, lambda whole: _dealt(whole, dim, self.count), value) for i, value in enumerate(values)]
        return [self.run(i, add_up, *(pieces[i] for pieces in cut)) for i in range(self.count)]

    def all_of(self, values: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Some tensors of every shard, those of other processes included, at home. Gradient: to each its own.

        Shapes: `[S, ...]` each, of one shape and dtype -> `[S, ...]` for each of all shards.
        """
        if self.between is None:
            return list(values)
        number = len(values[0])

        def unpacked(rows: Any) -> list[Any]:
            return [each for row in ops.unstack(rows, self.count, axis=0) for each in ops.unstack(row, number, axis=0)]

        rows = self.gather(self.run_each(lambda *own: ops.stack([ops.stack(own)]), *zip(*values, strict=True)), 0)
        flat = self.parts.run(self.home, unpacked, rows)
        return [flat[i * number : (i + 1) * number] for i in range(self.count)]

    def size_along(self, value: Any, dim: int) -> Any:
        """The size of a tensor along `dim`, for those that need it: None unless shards belong to several processes."""
        return None if self.between is None else ops.shape(value)[dim]

    def _at_home(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Returns ``function`` of the owned shards' tensors, at home; of one of them, that."""
        return values[0] if len(self.owned) == 1 else self.parts.run(self.home, function, *values)

    def _bounds(self, value: Any, dim: int) -> list[Any]:
        """The positions along `dim` at which the shards' parts of a tensor begin, and the last of them ends."""
        return even_bounds(ops.shape(value)[dim], self.count, ops.minimum)

    def _bounds_of_pieces(self, own: Any, dim: int, size: Any) -> list[Any]:
        """The same of the tensor of which this process' pieces, joined, are `own`."""
        if size is None:
            size = ops.shape(own)[dim] * (self.count // len(self.owned))
        return even_bounds(size, self.count, ops.minimum)

    def _of_processes(self, bounds: Sequence[Any]) -> Sequence[Any]:
        """The positions at which the processes' parts begin, given those of the shards'."""
        return bounds[:: len(self.owned)]

    def _cut_here(self, value: Any, dim: int, bounds: Sequence[Any]) -> list[Any]:
        """This process' part of a tensor to its shards."""
        if len(self.owned) == 1:
            return [value]
        first = self.owned[0]
        own = [bound - bounds[first] for bound in bounds[first : self.owned[-1] + 2]]
        return list(self.parts.run(self.home, lambda part: _cut(part, dim, own), value))


def add_up(*values: Any) -> Any:
    """Returns the sum of tensors."""
    # In turn, so that the rounding does not change from run to run.
    total = values[0]
    for value in values[1:]:
        total = ops.add(total, value)
    return total


def _dealt(value: Any, dim: int, count: int) -> list[Any]:
    dim %= len(value.shape)
    return _cut(value, dim, even_bounds(ops.shape(value)[dim], count, ops.minimum))


def _cut(value: Any, dim: int, bounds: Sequence[Any]) -> list[Any]:
    if value.shape[dim] is not None:
        return list(ops.split(value, bounds[1:-1], axis=dim))
    # A length that is known at run time only. Its slices' gradients are padded and added up, which is dearer.
    before = (slice(None),) * dim
    return [value[(*before, slice(start, end))] for start, end in itertools.pairwise(bounds)]


def _joiner(dim: int) -> Callable[..., Any]:
    return lambda *values: ops.concatenate(values, axis=dim)
