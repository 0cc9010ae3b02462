"""Arrays that are computed from files when they are used.

KerasHub's converters transpose, reshape, slice and join the tensors of model hubs' files before they assign them. Done
at once, every process would hold the whole model. Here NumPy's functions return another lazy array, and whatever a
process needs of it is computed when its own weight is set.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from strategies import layer_api


class LazyArray(layer_api.StoredArray):
    """An array whose functions and methods of NumPy return lazy arrays. It is read each time that it is used.

    Args:
        dataset: has a shape and a dtype, and is read by slices.
        where: the array's box in the dataset; all of the dataset if None.

    Example:

        kernel = np.reshape(np.transpose(array), (4, 2, 8))     # reads nothing
        np.asarray(kernel)                                      # reads the array, and computes
    """

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        del types
        return computed(function, *args, **kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return computed(getattr(ufunc, method), *inputs, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        box = _box(key, self.shape)
        return computed(operator.getitem, self, key) if box is None else self.part(box)

    def flat(self, begin: int, end: int) -> np.ndarray:
        """Returns the flattened elements `begin` to `end` of the array."""
        if isinstance(self._dataset, _Computation):
            # Computed once, instead of once for each box.
            return np.asarray(self).reshape(-1)[begin:end]
        return super().flat(begin, end)

    @property
    def T(self) -> Any:  # noqa: N802
        """The array with its dims reversed."""
        return computed(np.transpose, self)

    def transpose(self, *axes: Any) -> Any:
        """Returns the array with its dims in another order, as NumPy's method does."""
        return computed(_method("transpose"), self, *axes)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Returns the array in another shape, as NumPy's method does."""
        return computed(_method("reshape"), self, *shape, **kwargs)

    def astype(self, dtype: Any, **kwargs: Any) -> Any:
        """Returns the array in another dtype, as NumPy's method does."""
        return computed(_method("astype"), self, dtype, **kwargs)


def computed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what a function of NumPy returns: a lazy array, or at once what is no array.

    Raises:
        ValueError: the function cannot take arrays of these shapes.
    """
    result = _call(function, args, kwargs, _zeros)
    if not isinstance(result, np.ndarray):
        return _call(function, args, kwargs, np.asarray)
    return LazyArray(_Computation(function, args, kwargs, result.shape, result.dtype))


class _Computation:
    """The result of a function of NumPy, as a dataset.

    Args:
        function: takes arrays, returns an array.
        args: its arguments, among them lazy arrays.
        kwargs: likewise.
        shape: the shape of the result.
        dtype: the dtype of the result.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._call = function, args, kwargs
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, where: tuple[slice, ...]) -> np.ndarray:
        return np.asarray(_call(*self._call, np.asarray))[where]


def _call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], read: Callable[[Any], np.ndarray]
) -> Any:
    def value(argument: Any) -> Any:
        return read(argument) if isinstance(argument, LazyArray) else argument

    args, kwargs = keras.tree.map_structure(value, (tuple(args), dict(kwargs)))
    return function(*args, **kwargs)


def _zeros(array: LazyArray) -> np.ndarray:
    """Returns zeros of an array's shape, all of them one number in memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _method(name: str) -> Callable[..., Any]:
    return lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs)


def _box(key: Any, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Returns the box that an index selects; None if the index selects something else."""
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) > len(shape) or not all(isinstance(each, slice) for each in keys):
        return None
    bounds = [each.indices(size) for each, size in zip(keys, shape, strict=False)]
    if any(step != 1 for _, _, step in bounds):
        return None
    cut = [slice(begin, max(begin, end)) for begin, end, _ in bounds]
    return (*cut, *(slice(0, size) for size in shape[len(cut) :]))
