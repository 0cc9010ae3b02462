"""A model in stages, through which micro-batches flow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

import strategies
from keras_ext.pipeline.executor import Run
from keras_ext.pipeline.loss_trackers import LossTrackers
from keras_ext.pipeline.microbatch import Microbatches
from keras_ext.pipeline.partition import Cost, Partition, at, balanced, uniform
from keras_ext.pipeline.schedule import SCHEDULES, Schedule
from keras_ext.pipeline.stage import cut, nodes_of, stage_of_operations
from keras_ext.tensor.custom import is_custom
from keras_ext.tensor.graphs import copy_seeds
from keras_ext.tensor.layer import SplitLayer


@strategies.saved_as(keras.Model)
class PipelineModel(keras.Model):
    """A Sequential or Functional model whose layers lie on the devices of the mesh axis "pipe", cut into stages.

    A batch is cut into micro-batches. Stage 0 computes the first, hands it to stage 1 and goes on with the second, and
    so on; gradients come back the same way and are added up in the order of the micro-batches. ``compile``, ``fit`` and
    all else are those of a plain model, and so are results: to the bit those of the plain model with the same
    micro-batches accumulated, to float32 rounding those of the whole batch, unless a layer looks at several rows:
    ``BatchNormalization`` normalises by the rows of a micro-batch.

    In files it is the plain model. Without a mesh that has the axis, all stages are on one device.

    Args:
        model: a Sequential or Functional model, built; it is copied with its weights, and left as it is.
        num_stages: a multiple of the size of "pipe"; that size if left out, twice that for ``"interleaved_1f1b"``.
        num_microbatches: into how many a batch is cut. A batch that does not divide has larger ones first; one that has
            fewer rows has fewer.
        schedule: ``"gpipe"``, ``"1f1b"`` or ``"interleaved_1f1b"``.
        partition: ``"uniform"``, as many layers in each stage; ``"parameters"``, as many weights; or the names of the
            layers at which stages begin, the first one's left out.
        name: of the model.

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
        partition: str | Sequence[str] = "parameters",
        name: str | None = None,
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is one of {list(SCHEDULES)}. Received: schedule={schedule!r}.")
        if not isinstance(num_microbatches, int) or num_microbatches < 1:
            raise ValueError(f"num_microbatches is a positive number. Received: num_microbatches={num_microbatches!r}.")
        parts = strategies.replica_parts()
        along = parts.along("pipe")
        several = 2 if schedule == "interleaved_1f1b" else 1
        num_stages = several * len(along) if num_stages is None else num_stages
        if num_stages % len(along) or (several == 1 and len(along) > 1 and num_stages != len(along)):
            raise ValueError(
                f"The mesh has {len(along)} devices along 'pipe'; with schedule={schedule!r} they hold "
                f"{'a multiple of' if several > 1 else 'exactly'} as many stages. Received: num_stages={num_stages}."
            )
        graph = _graph_of(model)
        made = _partition(graph, num_stages, partition)
        stage_of = stage_of_operations(graph, made)
        copy = _copied(graph, parts, {name: along[k % len(along)] for name, k in stage_of.items()})
        super().__init__(inputs=copy.input, outputs=copy.output, name=name or model.name)
        if [node.operation.name for node in nodes_of(self)] != [node.operation.name for node in nodes_of(graph)]:
            raise ValueError(f"The copy of {model.name!r} has its layers in another order. Please report this.")
        self.num_microbatches = num_microbatches
        #: Which layers are in which stage; prints as a table.
        self.partition = made
        self._parts = parts
        self._stages = cut(self, made)
        self._devices = [along[k % len(along)] for k in range(num_stages)]
        self._num_devices = len(along)
        self._schedule_name = schedule
        # Replicas run in threads of their own.
        self._local = threading.local()

    @classmethod
    def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """The config of the plain model, for files."""
        return dict(config["model"])

    def get_config(self) -> dict[str, Any]:
        """The config of the plain model."""
        return {"name": self.name, "model": keras.Model(self.input, self.output, name=self.name).get_config()}

    def schedule(self, num_microbatches: int | None = None) -> Schedule:
        """Returns what each device does with a batch, in which order; prints as a clock grid.

        Args:
            num_microbatches: of the batch; the model's if left out.
        """
        number = self.num_microbatches if num_microbatches is None else num_microbatches
        per_device = len(self._stages) // self._num_devices
        if self._schedule_name == "interleaved_1f1b":
            return SCHEDULES[self._schedule_name](self._num_devices, number, per_device)
        # On one device, several stages: as on several, in turn.
        return SCHEDULES[self._schedule_name](len(self._stages), number)

    @property
    def losses(self) -> list[Any]:
        """What layers add to the loss; in a training step that of one micro-batch."""
        shown: list[Any] | None = getattr(self._local, "losses", None)
        return super().losses if shown is None else shown

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Computes the stages one after the other, each on its device."""
        flat = self._standardize_inputs(inputs)
        for value, own in zip(flat, keras.tree.flatten(mask) if mask is not None else [], strict=False):
            if own is not None:
                value._keras_mask = own
        values = dict(zip(map(id, self.inputs), flat, strict=True))
        for stage, part in zip(self._stages, self._devices, strict=True):
            with self._parts.on(part):
                made = stage.compute([values[id(tensor)] for tensor in stage.inputs], training)
            values.update(zip(map(id, stage.outputs), made, strict=True))
        return self._packed([values[id(tensor)] for tensor in self.outputs])

    def train_step(self, data: Any) -> Any:
        """As Keras' own, with the forward and backward passes of the schedule."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        flat = self._standardize_inputs(x)
        cut_up = Microbatches.of(flat, self.num_microbatches)
        inputs = [dict(zip(map(id, self.inputs), each, strict=True)) for each in cut_up.split(flat)]
        of_loss = [cut_up.split(each) for each in (x, y, sample_weight)]
        shares = cut_up.weights()
        losses: list[Any] = []
        trackers = LossTrackers(self)

        def loss_of(i: int, predicted: Sequence[Any], added: Sequence[Any]) -> Any:
            own_x, own_y, own_weight = (each[i] for each in of_loss)
            with self._showing(list(added)), trackers.holding():
                loss = self._compute_loss(
                    x=own_x, y=own_y, y_pred=self._packed(predicted), sample_weight=own_weight, training=True
                )
            self._check_loss(predicted)
            losses.append(loss * ops.cast(shares[i], loss.dtype))
            return losses[-1] if self.optimizer is None else self.optimizer.scale_loss(losses[-1])

        weights = [stage.trainable_variables for stage in self._stages]
        run = Run(
            self._stages,
            self.schedule(cut_up.number),
            self._parts,
            self._devices,
            [[variable.value for variable in own] for own in weights],
            [stage.penalties for stage in self._stages],
            inputs,
        )
        gradients = run.train(self.outputs, loss_of)
        trackers.update(shares, cut_up.num_rows)
        self._loss_tracker.update_state(sum(losses[1:], losses[0]), sample_weight=cut_up.num_rows)
        if self.trainable_weights:
            self.optimizer.apply_gradients(self._whole_gradients(weights, gradients))
        predicted = [self._packed([each[id(tensor)] for tensor in self.outputs]) for each in run.values]
        return self.compute_metrics(x, y, cut_up.join(predicted), sample_weight=sample_weight)

    def _check_loss(self, predicted: Sequence[Any]) -> None:
        """Refuses losses that are no means over rows: those of micro-batches do not add up to that of the batch."""
        losses = [each[1] for each in getattr(self._compile_loss, "_flat_losses", None) or ()]
        reductions = [getattr(loss, "reduction", None) for loss in losses]
        other = next((each for each in reductions if each not in (None, "mean", "sum_over_batch_size")), None)
        if other is not None:
            raise ValueError(
                "A pipeline adds up the losses of micro-batches by their rows. Use a loss whose reduction is "
                f"'sum_over_batch_size'. Received: reduction={other!r}."
            )
        if any(getattr(value, "_keras_mask", None) is not None for value in predicted):
            raise ValueError(
                "An output of the pipeline has a Keras mask: its loss is a mean over what is not masked, which those "
                "of micro-batches do not add up to. Pass sample weights instead, and make the mask's layer with "
                "mask_zero=False. Received: an output with a mask."
            )

    def _whole_gradients(
        self, weights: Sequence[Sequence[Any]], gradients: Sequence[Sequence[Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Gradient and variable, where a layer is in several stages at the first of them."""
        found: dict[int, list[Any]] = {}
        first: dict[int, int] = {}
        for k, (own, of_own) in enumerate(zip(weights, gradients, strict=True)):
            for variable, gradient in zip(own, of_own, strict=True):
                first.setdefault(id(variable), k)
                found.setdefault(id(variable), []).append(gradient)
        for variable in self.trainable_weights:
            part = self._devices[first[id(variable)]]
            yield self._parts.added(part, found[id(variable)]), variable

    def _packed(self, outputs: Sequence[Any]) -> Any:
        return keras.tree.pack_sequence_as(self.output, list(outputs))

    @contextlib.contextmanager
    def _showing(self, losses: list[Any]) -> Iterator[None]:
        self._local.losses = losses
        try:
            yield
        finally:
            self._local.losses = None


def _graph_of(model: Any) -> Any:
    """A Functional model of the layers of the given one."""
    if isinstance(model, keras.Sequential) and model.built and getattr(model, "inputs", None):
        return keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    if not hasattr(model, "operations"):
        raise ValueError(
            "A pipeline is made of a Sequential or Functional model that is built: begin a Sequential with a "
            f"keras.Input. Received: {model!r}."
        )
    return model


def _partition(graph: Any, num_stages: int, wanted: str | Sequence[str]) -> Partition:
    links, seen = [], set()
    for node in nodes_of(graph):
        layer = node.operation
        is_first = layer.name not in seen
        seen.add(layer.name)
        links.append(Cost(layer.name, parameters=layer.count_params() if is_first and hasattr(layer, "weights") else 0))
    if wanted == "uniform":
        return uniform(links, num_stages)
    if wanted == "parameters":
        return balanced(links, [float(link.parameters) for link in links], num_stages)
    if isinstance(wanted, str):
        raise ValueError(
            "partition is 'uniform', 'parameters' or the names of the layers at which stages begin. Received: "
            f"partition={wanted!r}."
        )
    if len(wanted) != num_stages - 1:
        raise ValueError(f"{num_stages} stages begin at {num_stages - 1} names. Received: partition={list(wanted)}.")
    return at(links, wanted)


def _copied(graph: Any, parts: strategies.ReplicaParts, part_of: dict[str, int]) -> Any:
    """The same model with the variables of each layer in its part."""

    def copied(layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return layer
        if is_custom(layer) and any(isinstance(inner, SplitLayer) for inner in layer._flatten_layers()):
            raise ValueError(
                f"The layer {layer.name!r} is of a class of its own, and what it holds is split; a pipeline's copy of "
                f"it would not be. Leave it whole: parallelize(model, {{{layer.name!r}: None, ...}}). Received: "
                f"{layer!r}."
            )
        with parts.creating(part_of[layer.name]):
            return type(layer).from_config(layer.get_config())

    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with parts.creating(part_of[layer.name]):
            return layer(*args, **kwargs)

    copy = keras.models.clone_model(graph, clone_function=copied, call_function=called)
    copy.set_weights(graph.get_weights())
    copy_seeds(graph, copy)
    return copy
