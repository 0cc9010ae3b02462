"""Files in the format of safetensors for KerasHub's loaders, whose tensors are lazy arrays."""

from __future__ import annotations

from pathlib import Path

from keras_ext.presets.lazy_arrays import LazyArray
from strategies import layer_api


class SafetensorsFile:
    """The tensors of one file, as ``safetensors.safe_open(path, framework="np")`` gives them, but lazy.

    Args:
        path: the file.

    Raises:
        ValueError: the file is not a whole file of this format.
    """

    def __init__(self, path: str | Path) -> None:
        self._tensors = layer_api.SafetensorsReader(Path(path)).tensors
        #: The names of tensors that were used.
        self.used: set[str] = set()

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing: the file is open only while a tensor is read."""

    def keys(self) -> list[str]:
        """Returns the names of all tensors."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> LazyArray:
        """Returns a tensor, which is read when it is used.

        Raises:
            KeyError: there is none of this name.
        """
        tensor = self._tensors[name]
        self.used.add(name)
        return LazyArray(tensor)

    def unused(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the tensors that were not used."""
        return {name: tensor.shape for name, tensor in self._tensors.items() if name not in self.used}
