"""Buckets of gradients that share one message, and the slices of them that owners get. Pure: standard library only.

`buckets` groups gradients in the order in which they become complete, `bucket_slices` partitions each bucket among the
members of a sharding group. `strategies.steps` and `strategies.sharding` communicate by them; `strategies.planning`
counts their messages without communicating.
"""

from strategies.buckets.bucket_slices import Slice, SlicedBucket, slice_buckets
from strategies.buckets.buckets import Bucket, make_buckets

__all__ = ["Bucket", "Slice", "SlicedBucket", "make_buckets", "slice_buckets"]
