"""The names of a mesh's axes, and sizes for them: inferred, refused, or the nearest that fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

#: The axes a mesh may have. "data" and "expert" hold replicas of the model, and each group along "expert" holds all
#: experts; "pipe" holds the stages of one replica, "tensor" the shards of one layer.
AXES = ("data", "expert", "pipe", "tensor")
#: The axes into which the "data" axis of a mesh of processes is cut for sharding groups; users do not name them.
SHARDING_AXES = ("replicate", "shard")
KNOWN_AXES = (*AXES, *SHARDING_AXES)

_REST = -1


def resolve_sizes(axes: Mapping[str, int] | None, num_devices: int) -> dict[str, int]:
    """Returns the sizes of `axes` with -1 replaced, so that they multiply to `num_devices`.

    Args:
        axes: size of each axis; None or empty means ``{"data": num_devices}``.
        num_devices: the required product of the sizes.

    Raises:
        ValueError: an unknown axis, a size neither positive nor -1, two -1, or sizes that cannot fit; the last error
            names the nearest sizes that fit.
    """
    sizes = dict(axes) if axes else {"data": _REST}
    for name, size in sizes.items():
        check_axis(name, AXES)
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != _REST):
            raise ValueError(
                f"The size of mesh axis {name!r} must be a positive integer, or -1 to be inferred. "
                f"Received: {size!r} in {sizes}."
            )
    rest = [name for name, size in sizes.items() if size == _REST]
    if len(rest) > 1:
        raise ValueError(f"Only one mesh axis may be -1 (inferred). Received: {sizes}.")
    named = math.prod(size for size in sizes.values() if size != _REST)
    if num_devices % named or (not rest and named != num_devices):
        fit = nearest_sizes(sizes, num_devices)
        raise ValueError(
            f"Mesh axes {sizes} need {'a multiple of ' if rest else ''}{named} devices. "
            f"Received: {num_devices}. Nearest sizes that fit: {fit}."
        )
    return {name: num_devices // named if size == _REST else size for name, size in sizes.items()}


def check_axis(axis: str, known: Sequence[str] = KNOWN_AXES) -> None:
    """Raises a ``ValueError`` if `axis` is none of the `known` ones."""
    if axis not in known:
        raise ValueError(f"Unknown mesh axis; the axes are {list(AXES)}. Received: {axis!r}.")


def forms_boxes(num_local: int, sizes: tuple[int, ...]) -> bool:
    """Returns True if each run of `num_local` consecutive flat indices is a box of the mesh: a product of ranges."""
    inner = 1
    for size in reversed(sizes):
        if num_local <= inner * size:
            return num_local % inner == 0 and size % (num_local // inner) == 0
        inner *= size
    return False


def nearest_sizes(sizes: Mapping[str, int], num_devices: int, num_local: int = 1) -> dict[str, int]:
    """Returns the sizes with product `num_devices` nearest to the given ones; ties keep earlier axes larger.

    An axis "data" is added if the given sizes fit with it. With the returned sizes, the `num_local` devices of each
    process form a box.
    """
    if "data" not in sizes and _REST not in sizes.values():
        with_data = {"data": num_devices // math.prod(sizes.values()), **sizes}
        if math.prod(with_data.values()) == num_devices and forms_boxes(num_local, tuple(with_data.values())):
            return with_data

    def distance(candidate: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        wanted = zip(candidate, sizes.values(), strict=True)
        changed = sum(abs(have - want) for have, want in wanted if want != _REST)
        return changed, tuple(-size for size in candidate)

    fitting = (each for each in _factorings(num_devices, len(sizes)) if forms_boxes(num_local, each))
    best = min(fitting, key=distance)
    return dict(zip(sizes, best, strict=True))


def _factorings(number: int, length: int) -> Iterator[tuple[int, ...]]:
    if length == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for others in _factorings(number // first, length - 1):
                yield (first, *others)
