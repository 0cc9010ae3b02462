"""A Keras model that is cut into pipeline stages and computes batches in micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.cloning import copy_training, counted_layers, init_graph, put_in_order
from keras_ext.pipeline import arguments
from keras_ext.pipeline.executor import ActionCallback
from keras_ext.pipeline.forward import ForwardPasses
from keras_ext.pipeline.graph_partition import Wanted, check_positions, num_stages_of, partition_of
from keras_ext.pipeline.losses import check_on_all_ranks
from keras_ext.pipeline.measured_timeline import measured_timeline
from keras_ext.pipeline.microbatch import Microbatches
from keras_ext.pipeline.model_graph import StageCopies, graph_of
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.stage import cut, stages_of_operations
from keras_ext.pipeline.stage_calls import StageCalls
from keras_ext.pipeline.staged_class import StagedModel, has_own_class, staged_class
from keras_ext.pipeline.thread_state import ThreadState
from keras_ext.pipeline.timeline import Timeline, picture_path
from keras_ext.pipeline.training_step import train_on_microbatches
from keras_ext.tensor_metadata import MASK, set_metadata
from strategies import layer_api
from strategies.schedules import Schedule


@layer_api.saved_as(keras.Model)
class PipelineModel(keras.Model):
    """A Sequential or Functional model that is cut into stages on the devices of the mesh axis "pipe".

    A batch is cut into micro-batches. Stage 0 computes the first, sends its output to stage 1, continues with the
    second, and so on; gradients flow back the same way and are accumulated in the order of the micro-batches.
    ``compile``, ``fit`` and all other methods are those of a plain model, and a compiled model stays compiled, with its
    optimizer's slots. Results are bit-identical to a plain model that accumulates the gradients of the same
    micro-batches, and equal to those of the whole batch up to float32 rounding, unless a layer depends on several rows:
    ``BatchNormalization`` normalises by the rows of a micro-batch, even with ``synchronized=True``, and training warns
    of it.

    Nested models, such as a backbone, are cut as well. Where two stages call a layer, such as a table that embeds
    tokens and computes logits, its gradients are summed. A model of a user's class, such as a task of KerasHub, stays
    one: the pipeline has the attributes and methods of both classes.

    Saved files contain the plain model, in its own class. Without the mesh axis "pipe", all stages are on one device.

    Args:
        model: a Sequential or Functional model, built, or a list of layers that begins with a ``keras.Input``;
            :class:`~keras_ext.PipelineStage` layers in it define the stages. It is copied with its weights, which keep
            their order, and with other learnt state, such as vocabularies.
        num_stages: a multiple of the size of "pipe". The default is that size, or twice that for
            ``"interleaved_1f1b"``, ``"zb_v"`` and ``"v_half"``.
        num_microbatches: the number of micro-batches of a batch. If it does not divide the number of rows, the first
            micro-batches are larger; a batch with fewer rows has fewer micro-batches.
        schedule: ``"gpipe"``, ``"1f1b"``, ``"eager_1f1b"`` (for stages in several processes) or
            ``"interleaved_1f1b"``; ``"zb_h1"``, which computes the gradients of weights while 1F1B would wait;
            ``"zb_v"``, which hardly waits at all, and ``"v_half"``, with half the activations, both with two stages on
            each device. Or a function of the numbers of stages and of micro-batches that makes a
            :class:`~keras_ext.Schedule` with one stage on each device; it is checked for each number of micro-batches.
        partition: ``"time"``: stages take equally long, where each layer's passes are timed with zeros, or with words
            of its vocabulary; ``"parameters"``: equal numbers of weights; ``"uniform"``: equal numbers of layers; the
            names of the layers at which stages begin, without the first stage's; or a
            :class:`~keras_ext.PartitionByTime`, with your own sample or a memory limit. Ignored if the layers define
            the stages.
        remat: stages that hold only their inputs for the backward pass, and recompute the rest: ``"all"``,
            ``"all_but_last"``, or their numbers. For single layers, use a ``keras.RematScope`` instead.
        reshard_after_pass: under a strategy with ``shard="weights"``, unshard a stage's weights for each forward and
            backward pass of a micro-batch and reshard them after it. A device with several stages then holds only one
            of them unsharded at a time, but gathers more often. Otherwise weights are unsharded once per step, until
            its end. This always applies to the weights of a stage with a layer that runs a collective over replicas
            (``synchronized=True``).
        name: the name of the model.

    Example:

        layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
        with strategies.MirroredStrategy(mesh={"data": -1, "pipe": 2}).scope():
            model = keras_ext.PipelineModel(layers, num_microbatches=4, partition="uniform")
            model.compile("adam", "mse")
        print(model.partition)

    Raises:
        ValueError: the model has no graph, has fewer layers than stages, or an argument is invalid.

    Source: Huang et al., arXiv:1811.06965; Narayanan et al., arXiv:2104.04473; Qi et al., arXiv:2401.10241.
    """

    def __init__(
        self,
        model: Any,
        num_stages: int | None = None,
        *,
        num_microbatches: int = 1,
        schedule: arguments.Scheduled = "1f1b",
        partition: Wanted = "time",
        remat: str | Sequence[int] | None = None,
        reshard_after_pass: bool = False,
        name: str | None = None,
    ) -> None:
        arguments.check(schedule, num_microbatches=num_microbatches, num_stages=num_stages)
        graph = graph_of(model)
        parts = layer_api.replica_parts()
        along = parts.along("pipe")
        arguments.warn_outside_scope(name or graph.name, len(along))
        num_stages = arguments.checked_num_stages(num_stages, num_stages_of(graph), len(along), schedule)
        recomputed = arguments.recomputed_stages(remat, num_stages)
        table = arguments.schedule_table(schedule, len(along), num_stages, num_microbatches)
        with layer_api.global_state_kept():
            made = partition_of(graph, num_stages, partition, lambda k: 1 if k in recomputed else table.num_held(k))
            stages_of = stages_of_operations(graph, made)
            positions = [table.placement.position_of(k, len(along)) for k in range(num_stages)]
            check_positions(graph, positions)
            copies = StageCopies(graph, parts, {key: {positions[k] for k in own} for key, own in stages_of.items()})
            copy = copies.copied()
            init_graph(self, inputs=copy.input, outputs=copy.output, name=name or graph.name)
            put_in_order(self, counted_layers(copy))
            if isinstance(self, StagedModel):
                copies.take_attributes(model, self)
            copies.take_state(model if isinstance(self, StagedModel) else graph, self)
            # The copy of a model gets its name.
            self.name = name or graph.name
        self.num_microbatches = num_microbatches
        #: The layers of each stage; prints as a table.
        self.partition = made
        self._parts = parts
        self._stages = cut(self, made)
        for stage in self._stages:
            if stage.index in recomputed and stage.sums_over_replicas:
                raise ValueError(
                    f"Stage {stage.index} has a layer that runs a collective over replicas while it computes "
                    "(synchronized=True), which cannot be recomputed. Leave it out of remat. Received: "
                    f"remat={remat!r}."
                )
        self._placed = PlacedStages(self._stages, self.outputs, parts, positions)
        self._placed.check()
        self._forward = ForwardPasses(self._placed, self.inputs)
        self._num_devices = len(along)
        self._scheduled_by = schedule
        self._remat = recomputed
        self._reshard = reshard_after_pass
        # Called at the start and end of each action, while a timeline is measured.
        self._on_action: ActionCallback | None = None
        self._thread = ThreadState()
        self._calls = StageCalls(self._placed, self._thread)
        if isinstance(model, keras.Model):
            copy_training(model, self)

    def __new__(cls, model: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Creates a pipeline, which is also of the class of `model` if that is a user's class."""
        staged = staged_class(PipelineModel, model.__class__) if cls is PipelineModel and has_own_class(model) else cls
        return super().__new__(staged, model, *args, **kwargs)

    @property
    def _compile_loss(self) -> Any:
        """Keras' object for the losses given to `compile`; while a replica computes its losses, the replica's copy."""
        # Keras sets it before the thread's state exists.
        own = getattr(self.__dict__.get("_thread"), "compiled_loss", None)
        return self.__dict__.get("_compile_loss") if own is None else own

    @_compile_loss.setter
    def _compile_loss(self, compiled: Any) -> None:
        self.__dict__["_compile_loss"] = compiled

    @classmethod
    def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of the plain model, for saved files."""
        return dict(config["model"])

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the plain model and the pipeline's arguments, with the cuts as names of layers."""
        return {
            "name": self.name,
            "model": self._config_of_plain_model(),
            "num_stages": len(self._stages),
            "num_microbatches": self.num_microbatches,
            "schedule": self._scheduled_by,
            "partition": [stage[0].name for stage in self.partition.stages[1:]],
            "remat": sorted(self._remat),
            "reshard_after_pass": self._reshard,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> PipelineModel:
        """Creates a pipeline with the same number of stages, cut at the same layers, with its own weights."""
        return cls(**{**config, "model": keras.Model.from_config(config["model"], custom_objects)})

    def _config_of_plain_model(self) -> dict[str, Any]:
        config: dict[str, Any] = keras.Model(self.input, self.output, name=self.name).get_config()
        return config

    def schedule(self, num_microbatches: int | None = None) -> Schedule:
        """Returns the actions of each device for a batch, in order; prints as a clock grid.

        Args:
            num_microbatches: the number of micro-batches of the batch; the model's if left out.
        """
        number = self.num_microbatches if num_microbatches is None else num_microbatches
        return arguments.schedule_table(self._scheduled_by, self._num_devices, len(self._stages), number)

    def pipeline_timeline(self, dataset: Any = None, path: Any = None) -> Timeline:
        """Measures some training steps, and draws one: devices down, time across, with the waits of each device.

        Weights, optimizer and metrics are restored afterwards. Each pass is timed from when its inputs are ready to
        when its outputs are; measuring takes time itself, so a measured step is a little longer than others. All
        processes call this; each measures its own first replica, and rank 0 writes the files. Stages in several
        processes are in one picture, by the clock of rank 0: all processes compare their clocks by exchanging messages,
        with an error of at most half of the quickest round trip, which the legend of the picture shows.

        Args:
            dataset: a data set as ``fit`` takes it as its first argument, with labels; a few batches are enough. If
                left out, the planned schedule is drawn, and nothing is run.
            path: the path of the picture, which ends in ".svg". Beside it, a file with the suffix ".json" is written,
                which Perfetto and Chrome's about:tracing open. Nothing is written if left out.

        Returns:
            The timeline; prints as a summary with the measured bubble beside that of the schedule.

        Raises:
            ValueError: the model is not compiled, `path` does not end in ".svg", or `dataset` has no batch.
        """
        # Refuses an invalid path before anything is measured.
        picture = None if path is None else picture_path(path)
        timeline = Timeline.planned(self.schedule()) if dataset is None else measured_timeline(self, dataset)
        if picture is not None and self._parts.rank == 0:
            timeline.write(picture)
        return timeline

    def device_names(self, schedule: Schedule) -> tuple[str, ...]:
        """Returns the first replica's names of a schedule's devices, such as "CPU:0".

        If TensorFlow chooses the devices, names are "stage 0", "stage 1", ... If stages are in several processes, names
        contain the rank, as in "rank 1 CPU:0".
        """
        along = self._parts.along("pipe")
        found = [self._parts.device_names[along[k % len(along)]] for k in range(schedule.num_devices)]
        return tuple(name or f"stage {k}" for k, name in enumerate(found))

    @property
    def losses(self) -> list[Any]:
        """The losses that layers add; in a training step those of one micro-batch."""
        if self._thread.losses is not None:
            return self._thread.losses
        # If stages are in several processes, the added losses already include the penalties of weights.
        return [*([] if self._placed.crosses else super().losses), *self._thread.added]

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Computes the stages, each on its device."""
        flat = self._standardize_inputs(inputs)
        if mask is not None:
            set_metadata(flat, MASK, keras.tree.flatten(mask))
        self._thread.added = []
        outputs, self._thread.added = self._outputs_and_losses(flat, training)
        return self._packed(outputs)

    def _outputs_and_losses(self, flat: Sequence[Any], training: bool | None) -> tuple[list[Any], list[Any]]:
        """Returns the outputs, and the added losses that the layers do not keep themselves."""
        forward, number = self._forward, self.num_microbatches
        flows = self._thread.flows
        if self._placed.crosses and not layer_api.in_shapes_only():
            if flows:
                with layer_api.split_into(number):
                    return forward.across(flat, number, training, not self._thread.tests)
            return forward.called_across(flat, number, training, self.name, self.trainable_variables)
        if not flows or training:
            return forward.computed(flat, training), []
        with layer_api.split_into(number):
            return forward.flowing(flat, number)

    def computed_with_losses(self, flat: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the outputs, and the losses that layers add, including penalties of weights."""
        outputs, added = self._forward.computed_with_losses(flat)
        return self._packed(outputs), added

    def make_train_function(self, force: bool = False) -> Any:
        """Creates Keras' train function, and warns of layers that see micro-batches instead of the whole batch."""
        if force or self.train_function is None:
            layer_api.warn_of_microbatch_layers(self)
        return super().make_train_function(force)

    def check_batch(self, data: Any) -> None:
        """Refuses on all processes a batch whose loss or metrics the last stage could not compute.

        It is called before a step is traced for the batch.

        Args:
            data: a batch as ``train_step`` takes it, or specs of its tensors.
        """
        steps = PipelineModel.train_step, PipelineModel.test_step
        if self._placed.crosses and (type(self).train_step, type(self).test_step) == steps:
            check_on_all_ranks(self, keras.utils.unpack_x_y_sample_weight(data), training=False)

    @layer_api.not_converted
    def test_step(self, data: Any) -> Any:
        """Runs Keras' test step, with micro-batches that flow through the stages."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with (
            self._thread.flowing(tests=True),
            layer_api.in_microbatches(data, Microbatches.from_batch(x, self.num_microbatches).sizes),
        ):
            if self._placed.crosses:
                check_on_all_ranks(self, (x, y, sample_weight), training=False)
            if self._placed.has_last:
                return super().test_step(data)
            # Another process computes the loss. Reading the metrics of the last stage is a collective.
            self._forward.across(self._standardize_inputs(x), self.num_microbatches, False, outputs_to_all=False)
            return self.get_metrics_result()

    @layer_api.not_converted
    def predict_step(self, data: Any) -> Any:
        """Runs Keras' predict step, with micro-batches that flow through the stages."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        sizes = Microbatches.from_batch(x, self.num_microbatches).sizes
        with self._thread.flowing(), layer_api.in_microbatches(data, sizes):
            return super().predict_step(data)

    @layer_api.not_converted
    def train_step(self, data: Any) -> Any:
        """Runs a training step with the forward and backward passes of the schedule."""
        # In an eager step, arrays would not be tracked as tensors that have rows.
        data = keras.tree.map_structure(lambda each: None if each is None else ops.convert_to_tensor(each), data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        cut_up = Microbatches.from_batch(x, self.num_microbatches)
        with layer_api.in_microbatches(data, cut_up.sizes):
            return train_on_microbatches(self, cut_up, x, y, sample_weight)

    def _packed(self, outputs: Sequence[Any]) -> Any:
        return keras.tree.pack_sequence_as(self.output, list(outputs))
