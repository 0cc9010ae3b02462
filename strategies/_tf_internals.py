"""The only importer of ``tensorflow.python``: each name with the reason why no public one serves.

Checked with TensorFlow 2.21. When TensorFlow moves one of these, this file is the only one that breaks.
"""

# The status a function was called under, and conversion with it: a replica function must be converted by
# AutoGraph exactly when the caller's function is, although our own frames between the two are not converted.
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert

# UpdateContext makes a mirrored variable mean one replica's component outside a replica thread;
# get_update_replica_id tells which. Strategy.extended.update enters it for one variable at a time only.
from tensorflow.python.distribute.distribute_lib import UpdateContext, get_update_replica_id

# One replica's part of a nest of per-replica values.
from tensorflow.python.distribute.distribute_utils import select_replica

# The replica threads themselves (merge_call, thread-local contexts). The engine wraps what they run.
from tensorflow.python.distribute.mirrored_run import call_for_each_replica

# MirroredStrategy's extended class: the public tf.distribute.MirroredStrategy takes no other.
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

# The values of tf.distribute: public names exist only for their abstract base.
from tensorflow.python.distribute.values import (
    DistributedVariable,
    MirroredVariable,
    PerReplica,
    PerReplicaSpec,
    SyncOnReadVariable,
)

# tf.function's class: tf.types.experimental.PolymorphicFunction is its base, without python_function and _clone.
from tensorflow.python.eager.def_function import Function

__all__ = [
    "DistributedVariable",
    "Function",
    "MirroredExtended",
    "MirroredVariable",
    "PerReplica",
    "PerReplicaSpec",
    "SyncOnReadVariable",
    "UpdateContext",
    "call_for_each_replica",
    "control_status_ctx",
    "get_update_replica_id",
    "select_replica",
    "tf_convert",
]
