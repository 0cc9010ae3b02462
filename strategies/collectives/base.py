"""The interface of all collectives: exchange of tensors between coordinates of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

from strategies.collectives import checks
from strategies.collectives.transport import Channel, Op, Pairs, Transport

__all__ = ["Channel", "Collectives", "Op", "Pairs"]


class Collectives(Transport):
    """Collectives along the axes of a mesh, as seen by one process.

    A process owns one or several coordinates of the mesh. Every method takes a list with **one tensor for
    each coordinate that this process owns**, in ascending flat index, and returns such a list; result ``i``
    lies on the device of coordinate ``i``. Coordinates that differ only along `axis` form a group of ``n``
    members; groups are independent of each other. Shapes below are those of one coordinate; ``n`` is the axis'
    size (1 if the mesh does not have the axis: then a method is the identity).

    All methods work eagerly and inside a ``tf.function``. Every process must call the same methods in the
    same order with the same arguments, tensors of the same dtype and rank, and traced functions must know the
    same dimensions statically.

    **Gradients** are the true adjoints over all coordinates: with the loss taken as the sum of the losses of
    all coordinates, each input gets the derivative of that sum. A caller for whom the output is one
    replicated value with one loss (Megatron-LM's f and g) needs another pair: call with
    ``differentiable=False`` under a ``tf.custom_gradient`` of its own. Every process must take the gradient,
    or none. Gradients of gradients are defined. A differentiable call with several local values moves them
    through the first one's device, which costs copies if devices have memory of their own;
    ``differentiable=False`` has no such cost, and no gradient.

    dtypes: float16, bfloat16, float32, float64, int32, int64; also bool for operations that neither add nor compare.

    Args:
        mesh: the grid of coordinates.
        rank: this process' rank in the mesh.
    """

    def all_reduce(
        self, values: Sequence[tf.Tensor], axis: str, op: Op = "sum", *, differentiable: bool = True
    ) -> list[tf.Tensor]:
        """Every member gets the elementwise sum, mean, minimum or maximum over the group.

        Shapes: `S` -> `S`, equal on all members.

        Gradient: of sum, the sum of the upstream gradients over the group; of mean, their mean; of min and
        max, that sum where a member holds the extreme value, shared equally among ties (``tf.reduce_max``).

        Raises:
            ValueError: the mean of integers (use the sum and divide as intended).
        """
        checks.check_op(op)
        tensors = self._checked(values, axis, arithmetic=True)
        if op == "mean":
            checks.check_floating(tensors[0].dtype, "The mean")

        def backward(upstream: list[tf.Tensor], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            if op in ("sum", "mean"):
                return self.all_reduce(upstream, axis, op)
            return self._extreme_gradient(tensors, outputs, self.all_reduce(upstream, axis), axis)

        return self._apply(lambda v: self._reduced(v, axis, op), backward, tensors, differentiable)

    def all_reduce_many(
        self,
        values: Sequence[Sequence[tf.Tensor]],
        axis: str,
        op: Literal["sum", "average", "adasum"] = "sum",
        compression: Literal["fp16", "bf16"] | None = None,
    ) -> list[list[tf.Tensor]]:
        """Every member gets the sums over the group of several tensors, communicated as one bucket.

        `values` and the result have one list for each coordinate that this process owns, all of equal length. There is
        no gradient. The communication starts when all of `values` are ready.

        Shapes: each `S_i` -> `S_i`, equal on all members; one dtype.

        Raises:
            ValueError: lists of different lengths, or an option that this transport does not support.
        """
        if op != "sum" or compression is not None:
            raise ValueError(
                f"{type(self).__name__} supports sums without compression only. Received: op={op!r}, "
                f"compression={compression!r}."
            )
        lists = checks.check_lists(values, len(self.local_indices))
        if not lists[0] or self.mesh.axis_size(axis) == 1:
            return lists
        return self._all_reduce_many(lists, axis)

    def all_gather(
        self,
        values: Sequence[tf.Tensor],
        axis: str,
        dim: int = 0,
        *,
        equal_sizes: bool = False,
        differentiable: bool = True,
    ) -> list[tf.Tensor]:
        """Every member gets the group's values concatenated along `dim`, in axis order.

        Shapes: `[.., d_i, ..]` -> `[.., d_0 + .. + d_(n-1), ..]`. The sizes ``d_i`` may differ, 0 included;
        other dimensions may not. Between processes the sizes are exchanged first, in a small collective of their own,
        unless `equal_sizes` promises that they are equal.

        Gradient: the upstream gradients are summed over the group and each member keeps its own part.
        """
        tensors = self._checked(values, axis, free_dim=dim)
        dim = checks.check_dim(dim, tensors[0].shape.rank)
        known = equal_sizes or self.mesh.axis_size(axis) == 1
        sizes = None if known else self._exchange_sizes(self._cut(tensors), axis, dim)
        return self._gather(tensors, axis, dim, sizes, differentiable)

    def reduce_scatter(
        self,
        values: Sequence[tf.Tensor],
        axis: str,
        dim: int = 0,
        op: Op = "sum",
        *,
        differentiable: bool = True,
    ) -> list[tf.Tensor]:
        """Member ``i`` gets part ``i`` along `dim` of the group's sum or mean.

        Shapes: `[.., d, ..]` -> `[.., d / n, ..]`; `d` must be divisible by ``n``.

        Gradient: all_gather of the upstream gradients (divided by ``n`` for the mean).

        Raises:
            ValueError: an operation other than sum and mean, the mean of integers, a size that ``n`` does not
                divide.
        """
        checks.check_op(op, ("sum", "mean"))
        tensors = self._checked(values, axis, arithmetic=True)
        dim = checks.check_dim(dim, tensors[0].shape.rank)
        checks.check_divisible(tensors, dim, self.mesh.axis_size(axis), axis)
        scattered = self._scatter(tensors, axis, dim, None, differentiable)
        if op == "sum":
            return scattered
        checks.check_floating(tensors[0].dtype, "The mean")
        return self._divided(scattered, self.mesh.axis_size(axis))

    def broadcast(
        self, values: Sequence[tf.Tensor], axis: str, root: int = 0, *, differentiable: bool = True
    ) -> list[tf.Tensor]:
        """Every member gets the value of the member at position `root` of the axis.

        Shapes: `S` -> `S`, equal on all members; the values of the others give shape and dtype only.

        Gradient: the root gets the sum of the upstream gradients over the group, the others zeros.
        """
        tensors = self._checked(values, axis)
        checks.check_position(root, self.mesh.axis_size(axis), axis)

        def backward(upstream: list[tf.Tensor], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            total = self.all_reduce(upstream, axis)
            return self._on_devices(
                lambda local, index: (
                    total[local] if self.mesh.position(index, axis) == root else tf.zeros_like(total[local])
                )
            )

        return self._apply(lambda v: self._broadcast(v, axis, root), backward, tensors, differentiable)

    def all_to_all(
        self,
        values: Sequence[tf.Tensor],
        axis: str,
        split_dim: int,
        concat_dim: int,
        *,
        differentiable: bool = True,
    ) -> list[tf.Tensor]:
        """Member ``i`` gets part ``i`` along `split_dim` of every member, concatenated along `concat_dim`.

        Shapes: `[.., s, .., c, ..]` -> `[.., s / n, .., c * n, ..]`, equal on all members; ``n`` divides `s`.

        Gradient: all_to_all of the upstream gradients with `split_dim` and `concat_dim` exchanged.
        """
        tensors = self._checked(values, axis)
        split_dim = checks.check_dim(split_dim, tensors[0].shape.rank)
        concat_dim = checks.check_dim(concat_dim, tensors[0].shape.rank)
        checks.check_divisible(tensors, split_dim, self.mesh.axis_size(axis), axis)

        def backward(upstream: list[tf.Tensor], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return self.all_to_all(upstream, axis, concat_dim, split_dim)

        return self._apply(
            lambda v: self._all_to_all(v, axis, split_dim, concat_dim), backward, tensors, differentiable
        )

    def permute(
        self, values: Sequence[tf.Tensor], axis: str, pairs: Pairs, *, differentiable: bool = True
    ) -> list[tf.Tensor]:
        """For each pair (source, target) of positions, the target gets the source's value; others get zeros.

        Shapes: `S` -> `S`, equal on all members. A position sends at most once and receives at most once; it
        may send to itself. ``[(i, (i + 1) % n) for i in range(n)]`` shifts the values around the axis as a ring.

        Gradient: permute of the upstream gradients with every pair reversed.
        """
        tensors = self._checked(values, axis)
        checks.check_pairs(pairs, self.mesh.axis_size(axis), axis)

        def backward(upstream: list[tf.Tensor], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return self.permute(upstream, axis, [(target, source) for source, target in pairs])

        return self._apply(lambda v: self._permute(v, axis, pairs), backward, tensors, differentiable)

    def channel(self, axis: str, source: int, target: int, num_messages: int = 1) -> Channel:
        """Returns a channel from position `source` to position `target`, in every group along `axis`.

        Create it inside the traced function that uses it, on the processes that own a source and on those that
        own a target, in the same order. Pipeline schedules send activations and gradients through channels.

        Args:
            axis: the mesh axis.
            source: the sending position.
            target: the receiving position, another one.
            num_messages: number of messages, with the tags ``0 .. num_messages - 1``.
        """
        for position in (source, target):
            checks.check_position(position, self.mesh.axis_size(axis), axis)
        if source == target or num_messages < 1:
            raise ValueError(
                f"A channel connects two different positions and carries at least one message. Received: "
                f"source={source}, target={target}, num_messages={num_messages}."
            )
        return self._channel(axis, source, target, num_messages)

    def _checked(
        self,
        values: Sequence[tf.Tensor],
        axis: str,
        *,
        arithmetic: bool = False,
        free_dim: int | None = None,
    ) -> list[tf.Tensor]:
        tensors = checks.check_values(values, len(self.local_indices), arithmetic)
        owned = dict(zip(self.local_indices, tensors, strict=True))
        for group in self.mesh.groups(axis):
            checks.check_shapes([owned[index] for index in group if index in owned], axis, free_dim)
        return tensors

    def _reduced(self, values: list[tf.Tensor], axis: str, op: Op) -> list[tf.Tensor]:
        if op != "mean":
            return self._all_reduce(values, axis, op)
        return self._divided(self._all_reduce(values, axis, "sum"), self.mesh.axis_size(axis))

    def _divided(self, values: list[tf.Tensor], divisor: int) -> list[tf.Tensor]:
        return self._on_devices(lambda local, _: values[local] / tf.cast(divisor, values[local].dtype))

    def _gather(
        self,
        values: list[tf.Tensor],
        axis: str,
        dim: int,
        sizes: list[tf.Tensor] | None,
        differentiable: bool,
    ) -> list[tf.Tensor]:
        def backward(upstream: list[tf.Tensor], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return self._scatter(upstream, axis, dim, sizes, True)

        return self._apply(lambda v: self._all_gather(v, axis, dim, sizes), backward, values, differentiable)

    def _scatter(
        self,
        values: list[tf.Tensor],
        axis: str,
        dim: int,
        sizes: list[tf.Tensor] | None,
        differentiable: bool,
    ) -> list[tf.Tensor]:
        def backward(upstream: list[tf.Tensor], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return self._gather(upstream, axis, dim, sizes, True)

        return self._apply(lambda v: self._reduce_scatter(v, axis, dim, sizes), backward, values, differentiable)

    def _extreme_gradient(
        self, inputs: list[tf.Tensor], outputs: Sequence[tf.Tensor], total: list[tf.Tensor], axis: str
    ) -> list[tf.Tensor]:
        holds = self._on_devices(lambda local, _: tf.cast(inputs[local] == outputs[local], total[local].dtype))
        num_ties = self.all_reduce(holds, axis, differentiable=False)
        return self._on_devices(lambda local, _: holds[local] * total[local] / num_ties[local])

    def _apply(
        self,
        forward: Callable[[list[tf.Tensor]], list[tf.Tensor]],
        backward: Callable[[list[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]],
        values: list[tf.Tensor],
        differentiable: bool,
    ) -> list[tf.Tensor]:
        """Runs `forward`, with `backward` as its gradient if the call is differentiable."""

        def run(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return forward(self._cut(inputs))

        if not differentiable or not values[0].dtype.is_floating:
            return run(values)

        @tf.custom_gradient
        def op(*inputs: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., list[tf.Tensor]]]:
            outputs = tuple(run(inputs))

            def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
                # The gradient of a gather downstream is IndexedSlices: make it dense.
                return backward([tf.convert_to_tensor(u) for u in upstream], outputs)

            return outputs, gradient

        with tf.device(self._device(0)):
            outputs = op(*values)
        # custom_gradient has placed all outputs on one device.
        return self._on_devices(lambda local, _: tf.identity(outputs[local]))
