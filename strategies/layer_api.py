"""The API for writing parallel layers: those of `keras_ext`, and a user's own."""

import keras

from strategies import _keras_hooks
from strategies._keras_hooks.agreement import compare_weights
from strategies._keras_hooks.callbacks import write_scalars
from strategies._keras_hooks.finished_steps import finished_steps
from strategies._keras_hooks.fit_exits import at_exit_of_fit
from strategies._keras_hooks.global_state import (
    global_state_kept,
    in_stateless_scope,
    name_counters,
    restore_name_counters,
)
from strategies._keras_hooks.gradients import for_optimizer
from strategies._keras_hooks.keras_versions import sort_layers
from strategies._keras_hooks.lora import adapters_in, adapters_of, kernels_apart
from strategies._keras_hooks.microbatch_layers import warn_of_microbatch_layers
from strategies._keras_hooks.model_state import named_state, set_named_state
from strategies._keras_hooks.new_variables import settled
from strategies._keras_hooks.plain_classes import saved_as
from strategies._keras_hooks.shapes import SYMBOLIC_ROWS, shapes_of
from strategies._keras_hooks.undrawn import UndrawnVariable, variables_undrawn, weights_left_in_files
from strategies._keras_hooks.watching import begin_save, note_units
from strategies._keras_hooks.whole_updates import some_need_whole
from strategies._keras_hooks.wrapping import not_converted
from strategies.batches.row_marks import mark_whole
from strategies.batches.shares import in_microbatches, split_into
from strategies.control_plane.preemption import Saver
from strategies.converting import TensorsByLayer, open_tensors
from strategies.engine.engine import engine_of
from strategies.monitoring.traces import MAX_STEPS
from strategies.op_names.scopes import pass_of_stage
from strategies.planning import Sharing
from strategies.replica.axis_mappings import AxisMappings, as_rows
from strategies.replica.copying import copy_value
from strategies.replica.creation_context import is_in_scope, values_follow
from strategies.replica.deferred import draw_values, drawn_for_now, in_shapes_only, is_left_in_file, is_remote
from strategies.replica.graph_lifetimes import computed_now, host_callback, in_graph, traced
from strategies.replica.inputs_only import compute_from_inputs
from strategies.replica.joinable import NeedsAllMicrobatchesError, joinable_microbatches
from strategies.replica.joined_weights import joined_weight
from strategies.replica.memory import gathered_bytes_per_device
from strategies.replica.microbatch_terms import (
    as_constant,
    as_mean,
    as_mean_over_rows,
    as_weighed,
    warn_of_mixed_microbatches,
)
from strategies.replica.owners import agree_on
from strategies.replica.parts import ReplicaParts, current_parts
from strategies.replica.recomputed import may_recompute, recomputed
from strategies.replica.recording import refuse_gradients, unrecorded
from strategies.replica.row_exchange import RowExchange, lie_on_replicas, num_replicas, row_exchange, sharded_rows
from strategies.replica.row_lookups import sharded_lookup
from strategies.replica.row_sums import sum_over_replicas, sum_over_rows, sum_over_rows_before
from strategies.replica.splitting import SplitWeight
from strategies.replica.stage_messages import Description, GradientParcel, StageMessages, clock_offset
from strategies.replica.stored_array import StoredArray
from strategies.replica.weight_identity import note_copy
from strategies.replica.whole_weights import joined
from strategies.saving.restoring import state_of
from strategies.saving.safetensors_file import SafetensorsReader
from strategies.saving.sharded_files import read_sharded_index
from strategies.saving.sharded_save import ShardedSaves
from strategies.saving.sharded_tensor import damaged_tensors, sharded_tensors
from strategies.saving.together import (
    from_all_ranks,
    rank_of,
    texts_of_job,
    texts_of_ranks,
    values_of,
    write_together,
)
from strategies.saving.unread_files import Differences
from strategies.saving.write_items import shape_and_dtype
from strategies.topology.rank_end import PREEMPTED
from strategies.tracing.recording import recorder_of


def replica_parts() -> ReplicaParts:
    """Returns the parts of a replica, one per device, under the current strategy; one part if a replica is not split.

    Example, in `build` of a layer whose kernel is cut into columns, one shard for each device of the axis "tensor":

        parts = layer_api.replica_parts()
        for position in range(parts.mesh.axis_size("tensor")):
            with parts.at(tensor=position):
                self.shards.append(self.add_weight(shape=shape_of_shard, name=f"kernel_{position}"))
    """
    # The hooks are needed without a strategy, too: files have the weights of a split layer as one weight.
    _keras_hooks.install()
    return current_parts()


def save_before_end(model: keras.Model, saver: Saver | None) -> None:
    """Registers `saver` to write a checkpoint on SIGTERM, on every process after the same step.

    Args:
        model: the model that is trained; under a strategy of another package this function does nothing.
        saver: takes the number of finished steps of the epoch in this call of ``fit``; it saves, and raises
            ``SystemExit(PREEMPTED)``. If it returns, as after the last step of an epoch, the processes exit with that
            code after ``on_epoch_end``. None: SIGTERM ends the process at once.
    """
    engine = engine_of(model.distribute_strategy)
    if engine is not None:
        engine.member.preemption.saver = saver


def sharing_of(model: keras.Model) -> Sharing | None:
    """Returns how a model's replicas share its state; None if a device does not hold a whole replica or its shards.

    It is None if a replica spans several devices, if there is a parameter device, if rows of weights are sharded over
    replicas, and under another package's strategy with several replicas.
    """
    strategy = model.distribute_strategy
    engine = engine_of(strategy)
    if engine is None:
        return Sharing() if strategy.num_replicas_in_sync == 1 else None
    if engine.central is not None or engine.parts.mesh.size > 1 or lie_on_replicas(model.variables):
        return None
    if engine.sharding is None:
        return Sharing(strategy.num_replicas_in_sync)
    shard = "weights" if engine.sharding.shards_weights else "optimizer"
    return Sharing(strategy.num_replicas_in_sync, shard, engine.sharding.size)


def gathered_bytes(model: keras.Model) -> dict[str, int]:
    """Returns the peak bytes of gathered weights on each device of this process, in addition to the shards.

    Empty if devices hold whole weights. A pipeline keeps the gathered weights of its stages until the step ends.
    """
    engine = engine_of(model.distribute_strategy)
    if engine is None or engine.sharded_weights is None:
        return {}
    return gathered_bytes_per_device(model.variables, all_stay=engine.parts.mesh.axis_size("pipe") > 1)


__all__ = [
    "MAX_STEPS",
    "PREEMPTED",
    "SYMBOLIC_ROWS",
    "AxisMappings",
    "Description",
    "Differences",
    "GradientParcel",
    "NeedsAllMicrobatchesError",
    "ReplicaParts",
    "RowExchange",
    "SafetensorsReader",
    "ShardedSaves",
    "SplitWeight",
    "StageMessages",
    "StoredArray",
    "TensorsByLayer",
    "UndrawnVariable",
    "adapters_in",
    "adapters_of",
    "agree_on",
    "as_constant",
    "as_mean",
    "as_mean_over_rows",
    "as_rows",
    "as_weighed",
    "at_exit_of_fit",
    "begin_save",
    "clock_offset",
    "compare_weights",
    "compute_from_inputs",
    "computed_now",
    "copy_value",
    "damaged_tensors",
    "draw_values",
    "drawn_for_now",
    "finished_steps",
    "for_optimizer",
    "from_all_ranks",
    "gathered_bytes",
    "global_state_kept",
    "host_callback",
    "in_graph",
    "in_microbatches",
    "in_shapes_only",
    "in_stateless_scope",
    "is_in_scope",
    "is_left_in_file",
    "is_remote",
    "joinable_microbatches",
    "joined",
    "joined_weight",
    "kernels_apart",
    "lie_on_replicas",
    "mark_whole",
    "may_recompute",
    "name_counters",
    "named_state",
    "not_converted",
    "note_copy",
    "note_units",
    "num_replicas",
    "open_tensors",
    "pass_of_stage",
    "rank_of",
    "read_sharded_index",
    "recomputed",
    "recorder_of",
    "refuse_gradients",
    "replica_parts",
    "restore_name_counters",
    "row_exchange",
    "save_before_end",
    "saved_as",
    "set_named_state",
    "settled",
    "shape_and_dtype",
    "shapes_of",
    "sharded_lookup",
    "sharded_rows",
    "sharded_tensors",
    "sharing_of",
    "some_need_whole",
    "sort_layers",
    "split_into",
    "state_of",
    "sum_over_replicas",
    "sum_over_rows",
    "sum_over_rows_before",
    "texts_of_job",
    "texts_of_ranks",
    "traced",
    "unrecorded",
    "values_follow",
    "values_of",
    "variables_undrawn",
    "warn_of_microbatch_layers",
    "warn_of_mixed_microbatches",
    "weights_left_in_files",
    "write_scalars",
    "write_together",
]
