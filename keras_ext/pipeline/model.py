"""A model in stages, through which micro-batches flow."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.cloning import counted_layers, put_in_order
from keras_ext.pipeline import arguments
from keras_ext.pipeline.executor import ActionCallback, Run
from keras_ext.pipeline.forward import ForwardPasses
from keras_ext.pipeline.gradients import whole_gradients
from keras_ext.pipeline.graph_partition import Wanted, num_stages_of, partition_of
from keras_ext.pipeline.losses import BatchLoss, check_on_all_ranks
from keras_ext.pipeline.measured_timeline import measured_timeline
from keras_ext.pipeline.microbatch import Microbatches
from keras_ext.pipeline.model_graph import copied, graph_of
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.schedule import Schedule
from keras_ext.pipeline.stage import cut, penalties_of, stages_of_operations
from keras_ext.pipeline.timeline import Timeline, picture_path
from keras_ext.tensor_metadata import MASK, set_metadata
from strategies import layer_api


@layer_api.saved_as(keras.Model)
class PipelineModel(keras.Model):
    """A Sequential or Functional model whose layers lie on the devices of the mesh axis "pipe", cut into stages.

    A batch is cut into micro-batches. Stage 0 computes the first, hands it to stage 1 and goes on with the second, and
    so on; gradients come back the same way and are added up in the order of the micro-batches. ``compile``, ``fit`` and
    all else are those of a plain model, and so are results: to the bit those of the plain model with the same
    micro-batches accumulated, to float32 rounding those of the whole batch, unless a layer looks at several rows:
    ``BatchNormalization`` normalises by the rows of a micro-batch, also with ``synchronized=True``, of which training
    warns.

    In files it is the plain model. Without a mesh that has the axis, all stages are on one device.

    Args:
        model: a Sequential or Functional model, built, or a list of layers that begins with a ``keras.Input``, in which
            :class:`~keras_ext.PipelineStage` layers say where stages begin. It is copied with its weights, which stay
            in the same order, and with what was learnt beside them, such as vocabularies.
        num_stages: a multiple of the size of "pipe"; that size if left out, twice that for ``"interleaved_1f1b"``.
        num_microbatches: into how many a batch is cut. A batch that does not divide has larger ones first; one that has
            fewer rows has fewer.
        schedule: ``"gpipe"``, ``"1f1b"``, ``"eager_1f1b"``, for stages in several processes, or
            ``"interleaved_1f1b"``.
        partition: ``"time"``, stages that take equally long, where each layer's passes are timed with zeros, or
            words that it knows; ``"parameters"``, as many weights; ``"uniform"``, as many layers; the names of the
            layers at which stages begin, the first one's left out; or a :class:`~keras_ext.PartitionByTime`, with a
            sample of one's own, or a limit of memory. Without meaning where stages are given.
        remat: stages that hold only their inputs for the backward pass, and compute the rest again: ``"all"``,
            ``"all_but_last"``, or their numbers. Single layers can be made under a ``keras.RematScope`` instead.
        reshard_after_pass: under a strategy with ``shard="weights"``, a stage's weights are gathered for each pass of a
            micro-batch, forward and backward, and dropped behind it: a device with several stages holds one of them
            whole at a time, for as many more messages. Else they are gathered once a step, and stay to its end, as
            do those of a stage with a layer that runs a collective over replicas (``synchronized=True``) at any rate.
        name: of the model.

    Example:

        layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
        with strategies.MirroredStrategy(mesh={"data": -1, "pipe": 2}).scope():
            model = keras_ext.PipelineModel(layers, num_microbatches=4, partition="uniform")
            model.compile("adam", "mse")
        print(model.partition)

    Raises:
        ValueError: the model has no graph, fewer layers than stages, or an argument is not as above.

    Source: Huang et al., arXiv:1811.06965; Narayanan et al., arXiv:2104.04473.
    """

    def __init__(
        self,
        model: Any,
        num_stages: int | None = None,
        *,
        num_microbatches: int = 1,
        schedule: str = "1f1b",
        partition: Wanted = "time",
        remat: str | Sequence[int] | None = None,
        reshard_after_pass: bool = False,
        name: str | None = None,
    ) -> None:
        arguments.check(schedule, num_microbatches=num_microbatches, num_stages=num_stages)
        graph = graph_of(model)
        parts = layer_api.replica_parts()
        along = parts.along("pipe")
        num_stages = arguments.checked_num_stages(num_stages, num_stages_of(graph), len(along), schedule)
        again = arguments.recomputed_stages(remat, num_stages)
        table = arguments.schedule_table(schedule, len(along), num_stages, num_microbatches)
        with layer_api.global_state_kept():
            made = partition_of(graph, num_stages, partition, lambda k: 1 if k in again else table.num_held(k))
            stages_of = stages_of_operations(graph, made)
            copy = copied(graph, parts, {name: {k % len(along) for k in own} for name, own in stages_of.items()})
        super().__init__(inputs=copy.input, outputs=copy.output, name=name or graph.name)
        put_in_order(self, counted_layers(copy))
        self.num_microbatches = num_microbatches
        #: The layers of each stage; prints as a table.
        self.partition = made
        self._parts = parts
        self._stages = cut(self, made)
        for stage in self._stages:
            if stage.index in again and stage.sums_over_replicas:
                raise ValueError(
                    f"Stage {stage.index} has a layer that runs a collective over replicas while it computes "
                    f"(synchronized=True), which is not done again. Leave it out of remat. Received: remat={remat!r}."
                )
        positions = [k % len(along) for k in range(num_stages)]
        self._placed = PlacedStages(self._stages, self.outputs, parts, positions)
        self._placed.check()
        self._forward = ForwardPasses(self._placed, self.inputs)
        self._num_devices = len(along)
        self._schedule_name = schedule
        self._remat = again
        self._reshard = reshard_after_pass
        # Called at the start and end of each action, while a timeline is measured.
        self._on_action: ActionCallback | None = None
        # Replicas run in threads of their own.
        self._local = threading.local()

    @property
    def _compile_loss(self) -> Any:
        """Keras' object for the losses given to `compile`; while a replica computes losses, the replica's own copy."""
        own = getattr(self.__dict__.get("_local"), "compile_loss", None)
        return self.__dict__.get("_compile_loss") if own is None else own

    @_compile_loss.setter
    def _compile_loss(self, compiled: Any) -> None:
        self.__dict__["_compile_loss"] = compiled

    @classmethod
    def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """The config of the plain model, for files."""
        return dict(config["model"])

    def get_config(self) -> dict[str, Any]:
        """The config of the plain model, and what it is made into a pipeline with; cuts by their names."""
        return {
            "name": self.name,
            "model": keras.Model(self.input, self.output, name=self.name).get_config(),
            "num_stages": len(self._stages),
            "num_microbatches": self.num_microbatches,
            "schedule": self._schedule_name,
            "partition": [stage[0].name for stage in self.partition.stages[1:]],
            "remat": sorted(self._remat),
            "reshard_after_pass": self._reshard,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> PipelineModel:
        """Makes a pipeline of as many stages, cut at the same layers, with weights of its own."""
        return cls(**{**config, "model": keras.Model.from_config(config["model"], custom_objects)})

    def schedule(self, num_microbatches: int | None = None) -> Schedule:
        """Returns what each device does with a batch, in which order; prints as a clock grid.

        Args:
            num_microbatches: of the batch; the model's if left out.
        """
        number = self.num_microbatches if num_microbatches is None else num_microbatches
        return arguments.schedule_table(self._schedule_name, self._num_devices, len(self._stages), number)

    def pipeline_timeline(self, dataset: Any = None, path: Any = None) -> Timeline:
        """Measures some training steps, and draws one: devices down, time across, and when each of them waits.

        Afterwards weights, optimizer and metrics are as before. Each pass is timed from when all that it takes is there
        to when all that it makes is; that costs time itself, so that a measured step is a little longer than others.
        Of several processes all call this; each measures its own first replica, and rank 0 writes. Stages in several
        processes are in one picture, by the clock of rank 0: the clocks are compared by exchanges between all of them,
        to half of the quickest round trip, which the legend of the picture says.

        Args:
            dataset: what ``fit`` takes as its first argument, with labels; a few batches are enough. Without it, the
                schedule is drawn, and nothing is run.
            path: of the picture, which ends in ".svg". Beside it a file with the suffix ".json" is written, which
                Perfetto and Chrome's about:tracing open. Nothing is written if left out.

        Returns:
            The timeline; prints as a summary with the measured bubble beside that of the schedule.

        Raises:
            ValueError: the model is not compiled, `path` does not end in ".svg", or `dataset` has no batch.
        """
        # Refused before anything is measured.
        picture = None if path is None else picture_path(path)
        timeline = Timeline.planned(self.schedule()) if dataset is None else measured_timeline(self, dataset)
        if picture is not None and self._parts.rank == 0:
            timeline.write(picture)
        return timeline

    def device_names(self, schedule: Schedule) -> tuple[str, ...]:
        """The devices of a schedule, of the first replica, such as "CPU:0"; "stage 0" where TensorFlow chooses.

        With their ranks, as "rank 1 CPU:0", if stages are in several processes.
        """
        along = self._parts.along("pipe")
        found = [self._parts.device_names[along[k % len(along)]] for k in range(schedule.num_devices)]
        return tuple(name or f"stage {k}" for k, name in enumerate(found))

    @property
    def losses(self) -> list[Any]:
        """The losses that layers add; in a training step those of one micro-batch."""
        shown: list[Any] | None = getattr(self._local, "losses", None)
        if shown is not None:
            return shown
        # Penalties of weights come with the losses that layers add where stages are in several processes.
        return [*([] if self._placed.crosses else super().losses), *getattr(self._local, "added", ())]

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Computes the stages one after the other, each on its device."""
        flat = self._standardize_inputs(inputs)
        if mask is not None:
            set_metadata(flat, MASK, keras.tree.flatten(mask))
        self._local.added = []
        outputs, self._local.added = self._outputs_and_losses(flat, training)
        return self._packed(outputs)

    def _outputs_and_losses(self, flat: Sequence[Any], training: bool | None) -> tuple[list[Any], list[Any]]:
        """The outputs, and the losses that layers add beside those that stay with them."""
        forward, number = self._forward, self.num_microbatches
        flows = getattr(self._local, "flows", False)
        if self._placed.crosses and not layer_api.in_shapes_only():
            if flows:
                with self._parts.split_into(number):
                    return forward.across(flat, number, training, not getattr(self._local, "tests", False))
            return forward.called_across(flat, number, training, self.name, self.trainable_variables)
        if not flows or training:
            return forward.computed(flat, training), []
        with self._parts.split_into(number):
            return forward.flowing(flat, number)

    def computed_with_losses(self, flat: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the outputs, and what layers add to the loss, penalties of weights included."""
        outputs, added = self._forward.computed_with_losses(flat)
        return self._packed(outputs), added

    def make_train_function(self, force: bool = False) -> Any:
        """Makes Keras' function, and warns of layers that see micro-batches where one device sees the batch."""
        if force or self.train_function is None:
            layer_api.warn_of_norms(self)
        return super().make_train_function(force)

    def check_batch(self, data: Any) -> None:
        """Refuses what the process of the last stage could not compute, on all of them, before a step is made for it.

        Args:
            data: as ``train_step`` takes it; specs of tensors will do.
        """
        own = type(self)
        if self._placed.crosses and (own.train_step, own.test_step) == (
            PipelineModel.train_step,
            PipelineModel.test_step,
        ):
            check_on_all_ranks(self, keras.utils.unpack_x_y_sample_weight(data), training=False)

    def test_step(self, data: Any) -> Any:
        """As Keras' own, with micro-batches that flow through the stages."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with (
            self._flowing(tests=True),
            self._parts.in_microbatches(data, Microbatches.of(x, self.num_microbatches).sizes),
        ):
            if self._placed.crosses:
                check_on_all_ranks(self, (x, y, sample_weight), training=False)
            if self._placed.has_last:
                return super().test_step(data)
            # The loss is computed by others. All processes read the metrics of the last stage together.
            self._forward.across(self._standardize_inputs(x), self.num_microbatches, False, outputs_to_all=False)
            return self.get_metrics_result()

    def predict_step(self, data: Any) -> Any:
        """As Keras' own, with micro-batches that flow through the stages."""
        with self._flowing():
            return super().predict_step(data)

    def train_step(self, data: Any) -> Any:
        """As Keras' own, with the forward and backward passes of the schedule."""
        # Arrays, in a step that runs as it is called, would not be known for what comes from rows.
        data = keras.tree.map_structure(lambda each: None if each is None else ops.convert_to_tensor(each), data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        cut_up = Microbatches.of(x, self.num_microbatches)
        with self._parts.in_microbatches(data, cut_up.sizes):
            return self._train_step(cut_up, x, y, sample_weight)

    def _train_step(self, cut_up: Microbatches, x: Any, y: Any, sample_weight: Any) -> Any:
        if self._compile_loss is not None and not self._compile_loss.built:
            self._build_loss((x, y, sample_weight))
        flat = self._standardize_inputs(x)
        if self._placed.crosses:
            check_on_all_ranks(self, (x, y, sample_weight), training=True)
        inputs = [dict(zip(map(id, self.inputs), each, strict=True)) for each in cut_up.split(flat)]
        loss = BatchLoss(self, self._parts, cut_up, (x, y, sample_weight)) if self._placed.has_last else None
        masks = self._forward.masks(flat, self.num_microbatches)
        if loss is not None:
            loss.begin(None if masks is None else self._packed(masks))
        weights = [stage.trainable_variables for stage in self._stages]
        run = Run(
            self._placed,
            self.schedule(cut_up.number),
            [[variable.value for variable in own] for own in weights],
            penalties_of(self._stages),
            inputs,
            self._remat,
            self._reshard,
            self._on_action if self._parts.replica == 0 else None,
        )
        with self._parts.split_into(cut_up.number):
            gradients = run.train(None if loss is None else loss.of)
        if loss is not None:
            loss.update()
        if self.trainable_weights:
            found, of = zip(*whole_gradients(self._placed, self.trainable_weights, weights, gradients), strict=True)
            terms = layer_api.for_optimizer(self.optimizer, found, of)
            self.optimizer.apply_gradients(zip(terms, of, strict=True))
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        if loss is not None:
            predicted = [self._packed([each[id(tensor)] for tensor in self.outputs]) for each in run.values]
            logs = self.compute_metrics(x, y, cut_up.join(predicted), sample_weight=sample_weight)
        else:
            # Those of the last stage, which all processes read together.
            logs = self.get_metrics_result()
        return (
            logs
            if self._on_action is None
            else {
                **logs,
                # No number of rows: it is there once the actions have been noted.
                "recorded": self._parts.as_constant(sum(run.recorded, ops.zeros(()))),
            }
        )

    def _build_loss(self, data: Any) -> None:
        """Builds the loss and the metrics ahead; the loss alone, by the graph's outputs, if a layer looks at values."""
        try:
            self._symbolic_build(data_batch=data)
        # Whatever layers, losses and metrics raise that only run in steps, with run_eagerly=True.
        except Exception:
            # Processes without the last stage would never have its metrics.
            if self._placed.crosses:
                raise
            self._compile_loss.build(data[1], self.output)

    def _packed(self, outputs: Sequence[Any]) -> Any:
        return keras.tree.pack_sequence_as(self.output, list(outputs))

    @contextlib.contextmanager
    def _showing(self, losses: list[Any], compiled: Any = None) -> Iterator[None]:
        """Inside, in this thread, layers have added these losses, and `compiled`, if given, computes the others."""
        self._local.losses, self._local.compile_loss = losses, compiled
        try:
            yield
        finally:
            self._local.losses = self._local.compile_loss = None

    @contextlib.contextmanager
    def _flowing(self, tests: bool = False) -> Iterator[None]:
        self._local.flows, self._local.tests = True, tests
        try:
            yield
        finally:
            self._local.flows = self._local.tests = False
