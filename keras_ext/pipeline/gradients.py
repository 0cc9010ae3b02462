"""Combines the gradients that stages computed into those of a model's variables. Tested with the model.

A layer that is called in stages of several processes has a copy in each of them. Each process adds up the gradients of
its own stages; then the processes exchange these sums and add them in the same order, so that the copies stay
bit-identical.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keras_ext.pipeline.placed_stages import PlacedStages
from strategies import layer_api


def whole_gradients(
    placed: PlacedStages,
    variables: Sequence[Any],
    weights: Sequence[Sequence[Any]],
    gradients: Sequence[Sequence[Any]],
) -> Iterator[tuple[Any, Any]]:
    """Yields (gradient, variable); if a layer is in several stages, gradients are summed on the device of the first.

    For a variable that only other processes have, the gradient is None.

    Args:
        placed: the stages.
        variables: the model's variables, in the order to yield.
        weights: for each stage, its variables.
        gradients: for each stage, the gradients of its variables.
    """
    found: dict[int, list[Any]] = {}
    first: dict[int, int] = {}
    # The processes that have each variable, in the order of their first stages that use it.
    owners: dict[int, list[int]] = {}
    for k, (own, of_own) in enumerate(zip(weights, gradients, strict=True)):
        process, part = placed.process_of[k], placed.devices[k]
        for variable, gradient in zip(own, of_own, strict=True):
            having = owners.setdefault(id(variable), [])
            if process not in having:
                having.append(process)
            if part is not None:
                first.setdefault(id(variable), part)
                found.setdefault(id(variable), []).append(gradient)
    shared = [variable for variable in variables if len(owners[id(variable)]) > 1]
    of_all = _exchanged(placed, shared, owners, found, first) if shared else {}
    for variable in variables:
        if id(variable) in first:
            terms = of_all.get(id(variable), found[id(variable)])
            yield placed.parts.added(first[id(variable)], terms), variable
        else:
            # Other processes own the variable. It is yielded because optimizers count, clip and are built with all.
            yield None, variable


def _exchanged(
    placed: PlacedStages,
    shared: Sequence[Any],
    owners: dict[int, list[int]],
    found: dict[int, list[Any]],
    first: dict[int, int],
) -> dict[int, list[Any]]:
    """Returns, for each shared variable that this process has, the sums of all its owners, in the order of `owners`."""
    messages = layer_api.StageMessages(placed.parts)
    sums: dict[tuple[int, int], Any] = {}
    for source in sorted({process for variable in shared for process in owners[id(variable)]}):
        own = [variable for variable in shared if source in owners[id(variable)]]
        if messages.position == source:
            for variable in own:
                terms = found[id(variable)]
                sums[id(variable), source] = placed.parts.added(first[id(variable)], terms)
        parcels = [layer_api.GradientParcel.from_gradient(sums.get((id(variable), source))) for variable in own]
        agreed = messages.agreed(source, [parcel.descriptions for parcel in parcels])
        for target in sorted({process for variable in own for process in owners[id(variable)]} - {source}):
            wanted = [index for index, variable in enumerate(own) if target in owners[id(variable)]]
            if messages.position == source:
                tensors = [tensor for index in wanted for tensor in parcels[index].tensors]
                messages.send(first[id(own[wanted[0]])], target, tensors)
            elif messages.position == target:
                described = [layer_api.Description.from_json(each) for index in wanted for each in agreed[index] or ()]
                part = first[id(own[wanted[0]])]
                received = iter(messages.receive(part, source, described))
                for index in wanted:
                    tensors = [next(received) for _ in agreed[index] or ()]
                    parcel = layer_api.GradientParcel(tuple(tensors))
                    sums[id(own[index]), source] = parcel.gradient(own[index].shape)
    mine = [variable for variable in shared if id(variable) in first]
    return {id(v): [sums[id(v), process] for process in owners[id(v)]] for v in mine}
