"""Operations in the graph, without Python, that may fail on one row without failing the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

#: Takes an element and further tensors; returns tensors.
Function = Callable[..., Sequence[Any]]


def in_one_thread(function: Function, inputs: Sequence[tf.Tensor]) -> Any:
    """Returns `function(*inputs)`; its operations run sequentially in the calling thread.

    TensorFlow usually hands operations from thread to thread, in particular the datasets in `guarded`. Where as many
    rows are processed in parallel as there are cores, that gains nothing and costs a tenth of the time.

    Args:
        function: may capture tensors. It must not contain `tf.cond` or `tf.while_loop`.
        inputs: tensors.
    """
    signature = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
    # Not inlined into the caller, whose operations may run in any thread.
    attributes = {"_noinline": True}
    traced = tf.function(
        function, input_signature=signature, autograph=False, experimental_attributes=attributes
    ).get_concrete_function()
    results = tf.raw_ops.StatefulPartitionedCall(
        args=[*inputs, *traced.captured_inputs],
        Tout=[spec.dtype for spec in traced.structured_outputs],
        f=traced,
        executor_type="SINGLE_THREADED_EXECUTOR",
    )
    return [tf.ensure_shape(value, spec.shape) for value, spec in zip(results, traced.structured_outputs, strict=True)]


def guarded(element: tf.Tensor, extras: Sequence[tf.Tensor], function: Function, defaults: Sequence[Any]) -> Any:
    """Returns `function(element, *extras)`, or `defaults` if any operation in it fails.

    Errors inside a graph cannot be caught, but `tf.data` can drop elements that fail: this is a dataset of one element,
    followed by one of the defaults. It uses raw operations, because the Python classes around them do more than is
    needed here, which takes longer than a small function does.

    Args:
        element: a tensor.
        extras: further tensors.
        function: captures no tensors from outside. It should be small: TensorFlow prepares it again for every call.
        defaults: returned on failure; same types as the results, sizes of dimensions may differ.
    """
    source = tf.raw_ops.TensorDataset(components=[element], output_shapes=[element.shape])
    return _first_or_default(source, element, extras, function, defaults)


def guarded_record(
    path: tf.Tensor,
    offset: tf.Tensor,
    extras: Sequence[tf.Tensor],
    function: Function,
    defaults: Sequence[Any],
) -> Any:
    """Returns what `guarded` does, for a record of a TFRecord file as element; verifies its checksum.

    Args:
        path: string, the file.
        offset: int64, start of the record in the file.
        extras: more tensors.
        function: takes the record's content, a string, and the extras.
        defaults: returned on failure.
    """
    # A single record: after a failure, the next must not be mistaken for this one.
    one = record_at(path, offset)
    return _first_or_default(one, tf.TensorSpec([], tf.string), extras, function, defaults)


def record_at(path: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Returns a dataset, as a variant, of the record at an offset in a TFRecord file."""
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        # No buffer: header and content are read exactly, nothing else.
        buffer_size=tf.constant(0, tf.int64),
        byte_offsets=[offset],
    )
    return tf.raw_ops.TakeDataset(
        input_dataset=records, count=tf.constant(1, tf.int64), output_types=[tf.string], output_shapes=[[]]
    )


def _first_or_default(
    source: tf.Tensor, element: Any, extras: Sequence[tf.Tensor], function: Function, defaults: Sequence[Any]
) -> Any:
    values = [tf.convert_to_tensor(value) for value in defaults]
    form: dict[str, Any] = {
        "output_types": [value.dtype for value in values],
        "output_shapes": [tf.TensorShape([None] * value.shape.rank) for value in values],
    }
    traced = tf.function(
        function,
        input_signature=[tf.TensorSpec(value.shape, value.dtype) for value in (element, *extras)],
        autograph=False,
        # Tells tf.data that the function is for one device: it need not be placed and partitioned for each call, which
        # took longer than all the rest.
        experimental_attributes={"experimental_ints_on_device": True},
    ).get_concrete_function()
    mapped = tf.raw_ops.MapDataset(
        input_dataset=source,
        other_arguments=list(extras),
        f=traced,
        # Run in the calling thread.
        use_inter_op_parallelism=False,
        **form,
    )
    sound = tf.raw_ops.IgnoreErrorsDataset(input_dataset=mapped, **form)
    instead = tf.raw_ops.TensorDataset(components=values, output_shapes=form["output_shapes"])
    both = tf.raw_ops.ConcatenateDataset(input_dataset=sound, another_dataset=instead, **form)
    first = tf.raw_ops.TakeDataset(input_dataset=both, count=tf.constant(1, tf.int64), **form)
    return tf.raw_ops.DatasetToSingleElement(dataset=first, **form)
