"""The only module that imports from ``tensorflow.python``; comments say why no public name can replace each import.

TensorFlow 2.19 and 2.21 have all of these names (checked). When TensorFlow moves one, this file is the only one that
breaks. TensorFlow 2.18 has the first one in another module.
"""

# Names the job whose processes TensorFlow's coordination service monitors; see `eager_context` below.
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2 as coordination_config

# Makes a function of a definition, which the runtime knows for as long as a graph has it: public importers of graphs
# add the functions of a library to the graph only, so that the runtime does not find those that a conditional calls.
from tensorflow.core.function.polymorphism.function_type import FunctionType

# Describes a device of a cluster for which `grappler_optimizer` optimizes a graph.
from tensorflow.core.protobuf import device_properties_pb2 as device_properties

# Restarts the recording of tapes where it was stopped: the public names can only stop it.
from tensorflow.python import pywrap_tfe

# AutoGraph's status where a function was called, and conversion under that status: a replica function must be
# converted by AutoGraph exactly when the caller's function is, although our own frames between the two are not.
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert

# Adds nodes to a graph: the public importer takes twice as long (`steps/graph_import`).
from tensorflow.python.client import pywrap_tf_session as c_api

# The dataset of `tf.data.experimental.assert_cardinality`: one of the steps of a pipeline, see below.
from tensorflow.python.data.experimental.ops.cardinality import _AssertCardinalityDataset as AssertCardinalityDataset

# Sharding of a pipeline by its files, and the division of its batches before that: no public name does it and returns
# a plain dataset.
from tensorflow.python.data.experimental.ops.distribute import (
    _AutoShardDataset as AutoShardDataset,
)
from tensorflow.python.data.experimental.ops.distribute import (
    _LegacyRebatchDataset as LegacyRebatchDataset,
)

# The steps of a pipeline, to find where rows can be selected before they are mapped, and their private attributes, to
# rebuild the later steps after the selection: no public name shows how a dataset was made. _MapDataset can also run its
# function in the thread that requests the element, at a tenth of the cost, which the public method does not offer.
# UnaryUnchangedStructureDataset, the base of datasets with the element spec of their input, has no public name.
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

# The spec of a component that is None: public, as tf.NoneTensorSpec, from TensorFlow 2.21 on only.
from tensorflow.python.data.util.structure import NoneTensorSpec

# Its public subclass NcclAllReduce works on GPUs only, and takes no group of devices.
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce

# In an UpdateContext, outside a replica thread, a mirrored variable means one replica's component;
# get_update_replica_id tells which. Strategy.extended.update enters it for one variable at a time only.
# In a ReplicaContext the caller is the replica; the public name's constructor is the same.
from tensorflow.python.distribute.distribute_lib import ReplicaContext, UpdateContext, get_update_replica_id

# `select_replica` takes one replica's part of a nest of per-replica values, `regroup` makes the nest of the parts, and
# `is_mirrored` is true of a variable that is the same on all replicas. None of the three is public.
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

# The id of the running replica, in a replica thread or in an update of one replica; None elsewhere.
from tensorflow.python.distribute.values_util import get_current_replica_id_as_int

# Shows whether TensorFlow's runtime has started: the options that join processes must be set before it starts.
from tensorflow.python.eager import context as eager_context

# Records a custom operation on tapes, with variables that it does not read. The public names need the tape
# (its stop_recording), or the values of the variables (tf.custom_gradient).
from tensorflow.python.eager import record as gradient_record

# Reports to tapes that the result depends on a variable that is not read, because another process owns it.
from tensorflow.python.eager import tape as gradient_tape

# tf.function's class: tf.types.experimental.PolymorphicFunction is its base, without python_function and _clone.
from tensorflow.python.eager.def_function import Function
from tensorflow.python.eager.polymorphic_function import atomic_function

# `auto_control_deps` finds the resources of operations, see `_keras_hooks/control_dependencies`; `c_api_util` makes the
# options of `c_api`.
# `op_callbacks` are called for each operation that runs eagerly: nothing else shows how an eager tensor was made.
# `random_seed` has the global seed that TensorFlow assumes beside an operation's own where a program sets none, and the
# numbers from which it makes seeds of operations in graphs that have none of their own.
# `func_graph` has the graph of a function, in which a step is traced before it is added to the graph of its caller.
from tensorflow.python.framework import auto_control_deps, c_api_util, func_graph, op_callbacks, random_seed

# Finds by its type whether an operation keeps state: a graph's function library has only the types of operations.
from tensorflow.python.framework import op_def_registry as op_definitions

# Shows whether operations have to be deterministic, in which case TensorFlow refuses to read the clock.
from tensorflow.python.framework.config import is_op_determinism_enabled

# Registry of the gradients of graphs, by name; entries are permanent. The public name of the class is the same class.
from tensorflow.python.framework.ops import RegisterGradient, gradient_registry

# Optimizes a graph that does not run yet, for the devices of a cluster. There is no public name.
from tensorflow.python.grappler import cluster as grappler_clusters
from tensorflow.python.grappler import tf_optimizer as grappler_optimizer

# The shape of a captured variable, as its graph records it: no public name reads or sets it.
from tensorflow.python.ops import handle_data_util

# The classes of variables on one device. The last has no value: memory is allocated when a value is assigned.
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable, UninitializedVariable

# Wraps the initial value of a variable that is made after its checkpoint was restored.
from tensorflow.python.trackable.base import CheckpointInitialValue

# Lists the operations that XLA can compile, for each kind of device.
from tensorflow.python.util import pywrap_xla_ops as xla_kernels

# Collects where the program made operations, for the errors of their copies.
from tensorflow.python.util import tf_stack

__all__ = [
    "AssertCardinalityDataset",
    "AutoShardDataset",
    "BaseResourceVariable",
    "BatchDataset",
    "CheckpointInitialValue",
    "CollectiveAllReduce",
    "DistributedVariable",
    "Function",
    "FunctionType",
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
    "atomic_function",
    "auto_control_deps",
    "c_api",
    "c_api_util",
    "call_for_each_replica",
    "control_status_ctx",
    "coordination_config",
    "device_properties",
    "eager_context",
    "func_graph",
    "get_current_replica_id_as_int",
    "get_update_replica_id",
    "gradient_record",
    "gradient_registry",
    "gradient_tape",
    "grappler_clusters",
    "grappler_optimizer",
    "handle_data_util",
    "is_mirrored",
    "is_op_determinism_enabled",
    "op_callbacks",
    "op_definitions",
    "pywrap_tfe",
    "random_seed",
    "regroup",
    "select_replica",
    "tensor_lists",
    "tf_convert",
    "tf_stack",
    "xla_kernels",
]
