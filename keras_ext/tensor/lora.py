"""Low-rank adapters (LoRA) of split layers, cut like the kernel to which their product is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.layer import SplitLayer
from strategies import layer_api


class AdaptedLayer(SplitLayer):
    """Mix-in before a plain layer's class that has `enable_lora`.

    Adapter A has all dims of the kernel but the last, then the rank; B has the rank, then the kernel's last dim. If the
    kernel is cut along its last dim, B is cut along the same dim, and A is whole; if it is cut along another dim, A is
    cut along that, and B is whole. So each shard computes its part of ``A @ B`` by itself, and the gradient of the
    whole adapter is the sum of the shards' gradients.

    Source: Hu et al., arXiv:2106.09685, section 4.
    """

    # Attributes of the plain layer.
    lora_enabled: bool
    lora_rank: int | None
    lora_alpha: float | None

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> None:
        """Freezes the kernel and adds to it the product of two trained matrices, as the plain layer does.

        Args:
            rank: of the product.
            *args: further arguments of the plain layer's method.
            **kwargs: likewise.

        Raises:
            ValueError: the layer is not built, has adapters already, or has a constraint.
        """
        plain_class(self).enable_lora(_Adapting(self), rank, *args, **kwargs)

    def add_adapter(self, name: str, shape: Sequence[int], **arguments: Any) -> Any:
        """Adds A or B, cut like the kernel, or whole if it does not have the dim along which the kernel is cut."""
        kernel = adapted_weight(self)
        is_cut = isinstance(kernel, layer_api.SplitWeight)
        dim = adapter_dim(name, kernel.ndim, kernel.dim) if is_cut else None
        if dim is None:
            return self.add_weight(name=name, shape=tuple(shape), **arguments)
        return self.add_split_weight(name, shape, dim, sizes=kernel.sizes, **arguments)

    def save_own_variables(self, store: Any) -> None:
        """Writes the plain layer's variables; adapters and quantized weights as the plain layer writes them."""
        if self._is_written_by_plain_class():
            plain_class(self).save_own_variables(self, store)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the plain layer's variables; adapters and quantized weights as the plain layer reads them."""
        if self._is_written_by_plain_class():
            plain_class(self).load_own_variables(self, store)
        else:
            super().load_own_variables(store)

    def _is_written_by_plain_class(self) -> bool:
        # Adapters are merged; quantized weights have an order of their own.
        return bool(getattr(self, "lora_rank", None)) or self.quantization_mode is not None

    def kernels_of_shards(self) -> list[list[Any]]:
        """Returns for each owned shard the tensors of its part of the kernel: the arguments of `kernel_of`."""
        shards = self._placed()
        lists = [shards.select_owned(adapted_weight(self).shards)]
        if self.lora_enabled:
            for adapter in layer_api.adapters_of(self):
                is_cut = isinstance(adapter, layer_api.SplitWeight)
                lists.append(shards.select_owned(adapter.shards) if is_cut else shards.copy(adapter))
        return [list(parts) for parts in zip(*lists, strict=True)]

    def kernel_of(self, kernel: Any, *adapters: Any) -> Any:
        """Returns a shard's kernel, plus the product of its adapters if it has any."""
        if not adapters:
            return kernel
        a, b = (keras.backend.standardize_dtype(each.dtype) for each in adapters)
        if a != b:
            # Keras casts the whole adapter when it is read; shards are read without a cast.
            kernel = ops.cast(kernel, self.compute_dtype)
            adapters = tuple(ops.cast(each, self.compute_dtype) for each in adapters)
        scale = (self.lora_alpha or 0.0) / (self.lora_rank or 1)
        return ops.cast(ops.add(kernel, scale * ops.matmul(*adapters)), self.compute_dtype)


class _Adapting:
    """A view of a split layer for the plain class' `enable_lora`: the weights that it adds are cut like the kernel."""

    def __init__(self, layer: AdaptedLayer) -> None:
        self.__dict__["_layer"] = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._layer, name, value)

    def add_weight(self, name: str, shape: Sequence[int], **arguments: Any) -> Any:
        """Adds an adapter."""
        return self._layer.add_adapter(name, shape, **arguments)


def plain_class(layer: Any) -> Any:
    """Returns the class that a split layer has in files."""
    return next(cls for cls in type(layer).__mro__ if not issubclass(cls, SplitLayer))


def adapted_weight(layer: Any) -> Any:
    """Returns the kernel, or the embedding table, of a layer that has `enable_lora`."""
    return layer._embeddings if isinstance(layer, keras.layers.Embedding) else layer._kernel


def adapter_dim(name: str, ndim: int, dim: int) -> int | None:
    """Returns the dim along which an adapter is cut; None if it stays whole.

    Args:
        name: of the adapter; ends in "a" or "b".
        ndim: the number of dims of the kernel.
        dim: the dim along which the kernel is cut.
    """
    is_last = dim == ndim - 1
    if name.endswith("b"):
        return 1 if is_last else None
    return None if is_last else dim
