"""The only importer of ``tensorflow.python``: each name with the reason why no public one serves.

Checked with TensorFlow 2.19 and 2.21, which have all of them under the same names. When TensorFlow moves one of these,
this file is the only one that breaks. TensorFlow 2.18 has the first elsewhere.
"""

# The processes whose health TensorFlow's coordination service looks after; see `eager_context` below.
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2 as coordination_config

# Has tapes go on where they have been stopped: the public names only stop them.
from tensorflow.python import pywrap_tfe

# The status a function was called under, and conversion with it: a replica function must be converted by
# AutoGraph exactly when the caller's function is, although our own frames between the two are not converted.
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert

# A number of elements that was asserted: the first of the steps of a pipeline, below.
from tensorflow.python.data.experimental.ops.cardinality import _AssertCardinalityDataset as AssertCardinalityDataset

# Sharding of a pipeline by its files, and before it the division of its batches: no public name does it for a dataset
# that stays a plain one.
from tensorflow.python.data.experimental.ops.distribute import (
    _AutoShardDataset as AutoShardDataset,
)
from tensorflow.python.data.experimental.ops.distribute import (
    _LegacyRebatchDataset as LegacyRebatchDataset,
)

# The steps of a pipeline, to see where rows can be chosen before they are mapped, and their private attributes, to
# make them again behind the choice: no public name tells what a dataset was made of. _MapDataset can also run its
# function in the thread that asks for the element, at a tenth of the cost, which the public method cannot ask for.
# UnaryUnchangedStructureDataset is the base of a dataset that has the elements of another, which has no public name.
from tensorflow.python.data.ops.batch_op import _BatchDataset as BatchDataset
from tensorflow.python.data.ops.batch_op import _ParallelBatchDataset as ParallelBatchDataset
from tensorflow.python.data.ops.dataset_ops import UnaryUnchangedStructureDataset
from tensorflow.python.data.ops.dataset_ops import _OptionsDataset as OptionsDataset
from tensorflow.python.data.ops.map_op import _MapDataset as MapDataset
from tensorflow.python.data.ops.map_op import _ParallelMapDataset as ParallelMapDataset
from tensorflow.python.data.ops.prefetch_op import _PrefetchDataset as PrefetchDataset
from tensorflow.python.data.ops.repeat_op import _RepeatDataset as RepeatDataset
from tensorflow.python.data.ops.shard_op import _ShardDataset as ShardDataset
from tensorflow.python.data.ops.skip_op import _SkipDataset as SkipDataset
from tensorflow.python.data.ops.take_op import _TakeDataset as TakeDataset

# Conversion of a dataset's elements to the arguments of its traced functions, and of their results to elements.
from tensorflow.python.data.util import structure as tensor_lists

# The component of an element that is None: public, as tf.NoneTensorSpec, from TensorFlow 2.21 on only.
from tensorflow.python.data.util.structure import NoneTensorSpec

# Its public subclass NcclAllReduce knows GPUs only, and no group of devices.
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce

# UpdateContext makes a mirrored variable mean one replica's component outside a replica thread;
# get_update_replica_id tells which. Strategy.extended.update enters it for one variable at a time only.
# ReplicaContext, entered, makes the caller the replica; the public name's constructor is the same.
from tensorflow.python.distribute.distribute_lib import ReplicaContext, UpdateContext, get_update_replica_id

# One replica's part of a nest of per-replica values; the nest made of the parts; whether a value is a variable that
# all replicas hold alike.
from tensorflow.python.distribute.distribute_utils import is_mirrored, regroup, select_replica

# The replica threads themselves (merge_call, thread-local contexts). The engine wraps what they run.
from tensorflow.python.distribute.mirrored_run import call_for_each_replica

# MirroredStrategy's extended class: the public tf.distribute.MirroredStrategy takes no other.
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

# The values of tf.distribute: public names exist only for their abstract base.
from tensorflow.python.distribute.values import (
    DistributedVariable,
    Mirrored,
    MirroredVariable,
    PerReplica,
    PerReplicaSpec,
    SyncOnReadVariable,
)

# The id of the running replica, inside one or inside an update of one; None elsewhere.
from tensorflow.python.distribute.values_util import get_current_replica_id_as_int

# Tells if TensorFlow's runtime has started: the options that join processes must be set before.
from tensorflow.python.eager import context as eager_context

# Has tapes record an operation of one's own, on variables that are not read. The public names need the tape
# (its stop_recording), and the values of the variables (tf.custom_gradient).
from tensorflow.python.eager import record as gradient_record

# Tells tapes that a variable is depended upon that is not read, because another process holds it.
from tensorflow.python.eager import tape as gradient_tape

# tf.function's class: tf.types.experimental.PolymorphicFunction is its base, without python_function and _clone.
from tensorflow.python.eager.def_function import Function

# Callbacks for each operation that runs eagerly: nothing else tells how an eager tensor was made.
from tensorflow.python.framework import op_callbacks

# Tells by its type if an operation keeps state: a graph's libraries of functions hold nothing but types.
from tensorflow.python.framework import op_def_registry as op_definitions

# Tells if operations are to be deterministic, in which case TensorFlow refuses to read the clock.
from tensorflow.python.framework.config import is_op_determinism_enabled

# Registry of the gradients of graphs, by name and for good. The public name of the class is the same class.
from tensorflow.python.framework.ops import RegisterGradient, gradient_registry

# The shape of a captured variable, as a graph knows it: no public name reads or sets it.
from tensorflow.python.ops import handle_data_util

# The classes of variables of one device, and of one without a value: memory is allocated when one is assigned.
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable, UninitializedVariable

# Stands for the initial value of a variable that is made after its checkpoint was restored.
from tensorflow.python.trackable.base import CheckpointInitialValue

# Names the operations that XLA can compile, for each kind of device.
from tensorflow.python.util import pywrap_xla_ops as xla_kernels

__all__ = [
    "AssertCardinalityDataset",
    "AutoShardDataset",
    "BaseResourceVariable",
    "BatchDataset",
    "CheckpointInitialValue",
    "CollectiveAllReduce",
    "DistributedVariable",
    "Function",
    "LegacyRebatchDataset",
    "MapDataset",
    "Mirrored",
    "MirroredExtended",
    "MirroredVariable",
    "NoneTensorSpec",
    "OptionsDataset",
    "ParallelBatchDataset",
    "ParallelMapDataset",
    "PerReplica",
    "PerReplicaSpec",
    "PrefetchDataset",
    "RegisterGradient",
    "RepeatDataset",
    "ReplicaContext",
    "ResourceVariable",
    "ShardDataset",
    "SkipDataset",
    "SyncOnReadVariable",
    "TakeDataset",
    "UnaryUnchangedStructureDataset",
    "UninitializedVariable",
    "UpdateContext",
    "call_for_each_replica",
    "control_status_ctx",
    "coordination_config",
    "eager_context",
    "get_current_replica_id_as_int",
    "get_update_replica_id",
    "gradient_record",
    "gradient_registry",
    "gradient_tape",
    "handle_data_util",
    "is_mirrored",
    "is_op_determinism_enabled",
    "op_callbacks",
    "op_definitions",
    "pywrap_tfe",
    "regroup",
    "select_replica",
    "tensor_lists",
    "tf_convert",
    "xla_kernels",
]
