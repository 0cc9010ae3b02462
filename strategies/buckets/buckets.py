"""Buckets of gradients that share one all-reduce, and the order in which these start. Pure: standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """Gradients that are communicated as one flat tensor.

    Args:
        indices: positions in the list of gradients, in the order of concatenation.
        dtype: the one dtype of all of them.
        num_bytes: the sum of their sizes.
    """

    indices: tuple[int, ...]
    dtype: str
    num_bytes: int


def make_buckets(
    sizes_bytes: Sequence[int], dtypes: Sequence[str], bucket_bytes: int, num_fused: int = 0
) -> tuple[Bucket, ...]:
    """Groups gradients into buckets of at most `bucket_bytes`, in the order in which they become complete.

    Backpropagation computes the gradient of the variable created last first, so gradients are taken from the end
    of the list to its start. A bucket can start once its lowest index is ready: buckets are sorted by descending
    lowest index. The result depends on the arguments alone, so that all ranks agree on it without communication.

    Args:
        sizes_bytes: size of each gradient in bytes, in creation order of the variables; 0 is allowed.
        dtypes: dtype name of each gradient.
        bucket_bytes: the maximum size of a bucket; a larger gradient has a bucket of its own.
        num_fused: the number of fused small reductions at the end of the lists. They are ready before the last
            gradient is, and are appended to the last bucket of their dtype, whatever its size.

    Returns:
        Buckets in which each index occurs exactly once. Empty for no gradients.

    Raises:
        ValueError: `bucket_bytes` below 1, a negative size, lists of different lengths, or `num_fused` outside 0 to
            the number of tensors.

    Source: the order is that of gradient bucketing in PyTorch DDP (Li et al., arXiv:2006.15704, sec. 3.2).
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1 byte. Received: {bucket_bytes}.")
    if len(sizes_bytes) != len(dtypes):
        raise ValueError(
            f"Expected one dtype for each gradient. Received: {len(sizes_bytes)} sizes and {len(dtypes)} dtypes."
        )
    for index, size in enumerate(sizes_bytes):
        if size < 0:
            raise ValueError(f"A gradient's size in bytes cannot be negative. Received: {size} at index {index}.")

    if not 0 <= num_fused <= len(sizes_bytes):
        raise ValueError(f"num_fused must be 0 to {len(sizes_bytes)}, the number of tensors. Received: {num_fused}.")
    num_gradients = len(sizes_bytes) - num_fused

    done: list[Bucket] = []
    # One open bucket per dtype: otherwise layers with alternating dtypes would never fill a bucket.
    open_buckets: dict[str, Bucket] = {}
    for index in reversed(range(num_gradients)):
        dtype, size = dtypes[index], sizes_bytes[index]
        current = open_buckets.pop(dtype, Bucket((), dtype, 0))
        if current.indices and current.num_bytes + size > bucket_bytes:
            done.append(current)
            current = Bucket((), dtype, 0)
        open_buckets[dtype] = Bucket((*current.indices, index), dtype, current.num_bytes + size)
    done.extend(open_buckets.values())
    done.sort(key=lambda bucket: -bucket.indices[-1])
    for index in range(num_gradients, len(sizes_bytes)):
        dtype, size = dtypes[index], sizes_bytes[index]
        last = next((i for i in reversed(range(len(done))) if done[i].dtype == dtype), len(done))
        joined = done.pop(last) if last < len(done) else Bucket((), dtype, 0)
        done.insert(last, Bucket((*joined.indices, index), dtype, joined.num_bytes + size))
    return tuple(done)
