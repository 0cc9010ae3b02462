"""Units: the groups of sharded weights that are gathered by one message, and the state of each in a step.

A unit has the weights that were created one after the other, as many as fit in one message. In a step, on each local
replica, it is in one of three states:

    SHARDED --- unshard ---> UNSHARDING --- wait_for_unshard ---> UNSHARDED --- reshard ---> SHARDED

While a graph is traced, the states are those of the trace: `unshard` makes the ops of the all-gather, and the ops that
are to be finished before; `wait_for_unshard` hands the tensors to the ops that use them; after `reshard`, no more ops
get them, so that the runtime frees them when the last op that has them is finished. Five units of a model that is not
a pipeline, from left to right in time; their tensors are in memory where there is a line:

                 forward pass                 backward pass          update
        unit 0   [1]===[3]                                              |
        unit 1      [1]===[3]                            [4]=======[5]  |
        unit 2         [1]===[3]                    [4]=======[5]       |
        unit 3            [1]==============================[5]          |
        unit 4               [1]======================[5]               |

[1] The first read of a weight unshards its unit, after the ops that use the unit two positions earlier: while one unit
    is in use, the next is being gathered, and no third takes memory.
[2] This read and all later ones wait, and get the same tensors; gradients are taken with respect to these.
[3] When the gradient's ops exist, all units but the last two are resharded: the backward pass loses their tensors.
[4] They are unsharded again, in reverse order, after the backward ops of the unit two positions later and the
    reduce-scatter of its gradients. A unit that the backward pass does not use, as unit 0 here, is not.
[5] The update changes the weights: all units are resharded, and a later read begins at [1].

A small unit stays unsharded from [1] to [5]. A pipeline whose passes reshard (`reshard_after_pass`) unshards a unit
before, and reshards it after, each pass of a micro-batch, forward and backward; any other pipeline unshards each unit
once, for all passes.

Source: the units and the prefetch of torch's FSDP (arXiv:2304.11277); the names are those of FSDP2.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies import planning
from strategies.buckets import Slice, SlicedBucket
from strategies.replica.owners import coordinates_of
from strategies.sharding.variables import ShardedVariable


class Gone:
    """Name, shape, dtype and bounds of a weight, for use after the weight itself has been deleted."""

    def __init__(self, variable: ShardedVariable) -> None:
        self.name, self.shape, self.dtype, self.bounds = variable.name, variable.shape, variable.dtype, variable.bounds


class Unit:
    """Weights that are gathered together."""

    def __init__(self, devices: tuple[str, ...], *, is_small: bool) -> None:
        #: The devices of the weights, one for each local replica.
        self.devices = devices
        #: True if the weights, once gathered, stay in memory until the step's end.
        self.is_small = is_small
        self.num_bytes = 0
        self._members: list[tuple[weakref.ref[ShardedVariable], Gone]] = []

    def add(self, variable: ShardedVariable, num_bytes: int) -> None:
        """Adds a weight to the unit."""
        variable.unit = self
        self._members.append((weakref.ref(variable), Gone(variable)))
        self.num_bytes += num_bytes

    @property
    def members(self) -> list[ShardedVariable | Gone]:
        """The weights; a `Gone` for each deleted one, since processes do not delete a weight at the same time."""
        return [form if (variable := each()) is None else variable for each, form in self._members]


class Units:
    """The units of a strategy's weights, in the order of their creation.

    Args:
        bucket_bytes: the maximum size of one message.
    """

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        # By dtype, devices, coordinates and size (small or not): the unit to which new weights are added.
        self._last: dict[Any, Unit] = {}

    def add(self, variable: ShardedVariable) -> None:
        """Adds a new weight to the last unit of its kind, or to a new one if that is full."""
        devices = tuple(component.device for component in variable.values)
        # The weights that a model had before it was cut must not share a unit with those of its stages: a gather would
        # initialize them.
        coordinates = frozenset(coordinates_of(variable).items())
        key = (variable.dtype.name, devices, coordinates)
        num_bytes = int(variable.shape.num_elements() or 0) * variable.dtype.size
        if variable.has_own_rows:
            # Steps never gather it.
            Unit(devices, is_small=False).add(variable, num_bytes)
            return
        is_small = planning.is_small(num_bytes, self._bucket_bytes)
        unit = self._last.get((key, is_small))
        if unit is None or not planning.has_room(unit.num_bytes, num_bytes, self._bucket_bytes):
            unit = self._last[key, is_small] = Unit(devices, is_small=is_small)
        unit.add(variable, num_bytes)


class State(enum.Enum):
    """The state of a unit on a replica; see the module's docstring."""

    SHARDED = "sharded"
    UNSHARDING = "unsharding"
    UNSHARDED = "unsharded"


#: Returns the whole values of weights of one unit on a local replica.
AllGatherUnit = Callable[[Sequence[Any], int], list[Any]]


class ReplicaUnit:
    """A unit on one local replica in one step: its state and its tensors.

    Args:
        unit: the unit.
        replica: the local replica.
        for_passes: True for the unit as it is gathered for passes that reshard, False as all other reads gather it.
    """

    def __init__(self, unit: Unit, replica: int, *, for_passes: bool = False) -> None:
        self.unit = unit
        self.replica = replica
        self.for_passes = for_passes
        self.state = State.SHARDED
        #: By the `id` of a weight, the tensor with respect to which its gradient is taken: the first that was gathered.
        self.handles: dict[int, Any] = {}
        #: The weights of `handles`, in the same order.
        self.weights: list[Any] = []
        #: The weights and tensors of each `unshard`, in order.
        self.gathers: list[tuple[list[Any], list[Any]]] = []

    def unshard(
        self,
        all_gather: AllGatherUnit,
        weights: Sequence[Any],
        after: Sequence[tf.Operation] = (),
        peers: Iterable[ReplicaUnit] = (),
    ) -> None:
        """Starts the all-gather of weights of the unit, after some ops.

        Args:
            all_gather: gathers the weights.
            weights: all or some of the unit's weights.
            after: ops to wait for.
            peers: the unit on the local replicas from which it may be copied. All of them run the same program: of
                several, the first gathers, and the others copy.

        Raises:
            RuntimeError: an all-gather has been started, and nothing has waited for it.
        """
        if self.state is State.UNSHARDING:
            raise RuntimeError(f"A unit of sharded weights is unsharded twice. Received: {self._description()}.")
        known = self.on_peer(peers)
        if known is not None and list(map(id, known[0])) == list(map(id, weights)):
            with tf.device(self.unit.devices[self.replica]):
                tensors = [None if value is None else tf.identity(value) for value in known[1]]
        else:
            with tf.control_dependencies(list(after)):
                tensors = list(all_gather(weights, self.replica))
        self.gathers.append((list(weights), tensors))
        self.state = State.UNSHARDING

    def on_peer(self, peers: Iterable[ReplicaUnit]) -> tuple[list[Any], list[Any]] | None:
        """Returns what the next `unshard` has gathered on a peer, weights and tensors; None if no peer is ahead."""
        number = len(self.gathers)
        return next((peer.gathers[number] for peer in peers if len(peer.gathers) > number), None)

    def wait_for_unshard(self) -> list[Any]:
        """Returns the tensors that `unshard` has gathered; None for a weight that no longer exists.

        Raises:
            RuntimeError: no all-gather has been started.
        """
        if self.state is not State.UNSHARDING:
            raise RuntimeError(f"No all-gather of sharded weights was started. Received: {self._description()}.")
        self.state = State.UNSHARDED
        return self.gathers[-1][1]

    def reshard(self) -> None:
        """Drops the whole weights: no further ops take them. `handles` stay, as what gradients refer to."""
        self.state = State.SHARDED

    def _description(self) -> str:
        names = [str(each.name) for each in self.unit.members]
        return f"{names} on replica {self.replica}, which are {self.state.value}"


class ReplicaUnits:
    """The units of one local replica in one step.

    Attributes:
        used: the units that were read outside of passes that reshard, in the order of their first use.
        earlier: by the `id` of a weight, the tensors that were read of it before updates in this step.
        assigned: by the `id` of a weight, the value that the replica has assigned in this step.
        num_forward_ops: the number of ops in the graph when the replica took its first gradient; None before.
        stay: True if forward passes follow a backward pass: units then stay unsharded to the step's end.
    """

    def __init__(self, replica: int, earlier: Mapping[int, list[Any]] | None = None) -> None:
        self._replica = replica
        self._units: dict[tuple[Unit, bool], ReplicaUnit] = {}
        self.earlier = dict(earlier or {})
        self.used: list[ReplicaUnit] = []
        self.assigned: dict[int, tf.Tensor] = {}
        self.num_forward_ops: int | None = None
        self.stay = False

    def get(self, unit: Unit, *, for_passes: bool = False) -> ReplicaUnit:
        """Returns a unit on this replica, for passes that reshard or for all other reads."""
        made = ReplicaUnit(unit, self._replica, for_passes=for_passes)
        return self._units.setdefault((unit, for_passes), made)

    def resharded(self) -> ReplicaUnits:
        """Returns the units after an update: the tensors that were read are the old weights, so all are sharded."""
        handles = {key: tensor for unit in self._units.values() for key, tensor in unit.handles.items()}
        read = {key: [*self.earlier.get(key, []), tensor] for key, tensor in handles.items()}
        return ReplicaUnits(self._replica, self.earlier | read)

    def large(self, devices: tuple[str, ...]) -> list[ReplicaUnit]:
        """Returns the large units of one part of a replica in the order of use; two at a time are unsharded."""
        return [each for each in self.used if each.unit.devices == devices and not each.unit.is_small]


def bucket_of(variables: Sequence[Any], num_owners: int, positions: Sequence[int] | None = None) -> SlicedBucket:
    """Returns the shards of weights as one bucket.

    Args:
        variables: sharded TensorFlow variables.
        num_owners: the number of owners of each variable.
        positions: the variables' positions in the list to which the slices refer; None for their order.
    """
    numbers = range(len(variables)) if positions is None else positions
    slices = [
        Slice(i, owner, *variable.bounds[owner])
        for owner in range(num_owners)
        for i, variable in zip(numbers, variables, strict=True)
        if variable.bounds[owner][0] < variable.bounds[owner][1]
    ]
    return SlicedBucket(tuple(slices), num_owners)
