"""Runs stages in the order of a schedule, forward and backward.

All actions are traced into one graph. Data edges determine what can run, and control edges the order on each device: an
action starts when the previous one on its device has ended, including the accumulation of its weights' gradients.
Without these edges, TensorFlow would run each op as soon as possible and hold the activations of all micro-batches,
which would defeat 1F1B.

If stages are in several processes, each process computes its own, and `exchange` sends and receives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.batch_state import BatchState, ControlDependencies
from keras_ext.pipeline.exchange import Exchange
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.tensor_metadata import LOGITS, MASK, metadata_of, not_none, set_metadata
from strategies import layer_api
from strategies.schedules import Action, Kind, Schedule

#: Computes the loss of some micro-batches: takes their numbers, the model's outputs for each, and the losses that
#: layers add for each; returns a scalar.
LossFunction = Callable[[Sequence[int], Sequence[Sequence[Any]], Sequence[Sequence[Any]]], Any]

#: Called at the start (False) and at the end (True) of each action.
ActionCallback = Callable[[Action, bool], None]

#: The largest number of stages' forward passes that are traced in line. With more, each stage is a function in the
#: graph, traced once and not for each micro-batch: 16 micro-batches through 4 stages of a small transformer are traced
#: in 6 s instead of 22. Steps take a few percent longer, so a small number of passes is traced in line.
MOST_CALLS_IN_LINE = 24


class Run:
    """A run of one batch through the pipeline.

    Args:
        placed: the stages.
        schedule: the order of actions.
        variables: for each stage, the trainable TensorFlow variables that it reads.
        penalties: for each stage, a function that returns the penalties of its weights.
        inputs: for each micro-batch, the model's inputs by the `id` of Keras' tensors.
        remat: stages that hold only their inputs until their backward pass, and recompute the rest.
        reshard: unshard the weights that the strategy shards for each pass of a stage, once the previous pass on its
            device has ended, and reshard them after it.
        on_action: called when actions start and end, if given.
    """

    def __init__(
        self,
        placed: PlacedStages,
        schedule: Schedule,
        variables: Sequence[Sequence[Any]],
        penalties: Sequence[Callable[[], list[Any]]],
        inputs: Sequence[Mapping[int, Any]],
        remat: Collection[int] = (),
        reshard: bool = False,
        on_action: ActionCallback | None = None,
    ) -> None:
        self._placed = placed
        self._stages = placed.stages
        self._schedule = schedule
        self._parts = placed.parts
        self._variables = variables
        self._remat = remat
        self._reshard = reshard
        self._on_action = on_action
        #: One scalar for each call of `on_action`, ready when the call has returned.
        self.recorded: list[Any] = []
        self._from_outside = set(inputs[0])
        self._state = BatchState([dict(each) for each in inputs])
        # For each device, the control dependencies of its first action.
        self._first_dependencies: dict[int, list[Any]] = {}
        self._own_penalties = {
            k: self._penalties(part, penalties[k], variables[k])
            for k, part in enumerate(placed.devices)
            if part is not None
        }
        self._state.penalties = {k: values for k, (values, _) in self._own_penalties.items()}
        self._vjps: dict[tuple[int, int], Any] = {}
        self._add_to_totals: dict[tuple[int, int], Any] = {}
        self._passes: dict[Any, Any] = {}
        # In line, nothing would hold back the gradients of weights.
        self._in_line = len(placed.stages) * len(inputs) <= MOST_CALLS_IN_LINE and not schedule.splits_backward
        self._totals: list[list[Any]] = [[None] * len(own) for own in variables]
        self._dependencies = ControlDependencies(schedule.devices)
        own = placed, self._state, self._dependencies
        self._exchange = Exchange(*own, backward=schedule.backward) if placed.crosses else None
        # True if the loss is computed once from all micro-batches.
        self._joins_losses = False

    @property
    def values(self) -> Sequence[Mapping[int, Any]]:
        """The computed values of each micro-batch, by the `id` of Keras' tensors."""
        return self._state.values

    def train(self, loss_function: LossFunction | None) -> list[list[Any]]:
        """Computes outputs and gradients of all micro-batches.

        Args:
            loss_function: returns each micro-batch's term of the loss; None in processes without the last stage.

        Returns:
            For each stage, the gradients of the summed loss with respect to its variables; None for no gradient.
        """
        if self._exchange is not None:
            self._exchange.penalties()
        for action in self._schedule.order():
            if self._placed.devices[action.stage] is not None:
                with layer_api.pass_of_stage(action.stage, action.kind.value, action.microbatch):
                    self._compute(action, loss_function)
            if self._exchange is not None:
                self._exchange.after(action)
        if self._exchange is not None:
            self._exchange.gradients_of_penalties()
        for k, (values, vjp) in self._own_penalties.items():
            upstream = [self._gathered(self._placed.part(k), ("penalty", k, n)) for n in range(len(values))]
            part = self._placed.part(k)
            _, self._totals[k] = vjp(upstream, self._dependencies.last(part) if self._reshard else (), self._totals[k])
            if self._reshard and not_none(upstream):
                self._dependencies.note(part, not_none(self._totals[k]))
        return self._totals

    def _penalties(self, part: int, penalties: Callable[[], list[Any]], variables: Sequence[Any]) -> tuple[Any, Any]:
        """Returns the penalties of a stage's weights, and their vjp."""
        values, vjp = self._parts.passes(part, penalties, variables, reshard=self._reshard)(
            [], self._first_dependencies.get(part, ())
        )
        if self._reshard and values:
            self._first_dependencies[part] = values
        return values, vjp

    def _compute(self, action: Action, loss_function: LossFunction | None) -> None:
        if action.kind is Kind.FORWARD:
            self._forward(action)
            if action.stage == len(self._stages) - 1 and loss_function is not None:
                self._forward_ended(action.microbatch, loss_function)
        elif action.kind is Kind.BACKWARD_WEIGHT:
            self._weights_backward(action)
        else:
            self._backward(action)

    def _forward(self, action: Action) -> None:
        k, i = action.stage, action.microbatch
        stage = self._stages[k]
        inputs = [self.values[i][id(tensor)] for tensor in stage.inputs]
        masks = metadata_of(inputs, MASK)
        present = (tuple(value is not None for value in inputs), tuple(mask is not None for mask in masks))
        passes, has_metadata = self._passes_of(k, *present)
        given = [*not_none(inputs), *not_none(masks)]
        made, vjp = passes(given, self._started(action, given))
        outputs = made[: len(stage.outputs)]
        rest = iter(made[len(outputs) :])
        self._state.values[i].update(zip(map(id, stage.outputs), outputs, strict=True))
        set_metadata(outputs, MASK, [next(rest) if has_one else None for has_one in has_metadata["masks"]])
        for tensor, has_logits in zip(stage.outputs, has_metadata["logits"], strict=True):
            if has_logits:
                self._state.logits[i, id(tensor)] = next(rest)
        self._state.added[k, i] = list(rest)
        self._vjps[k, i] = vjp, sum(has_metadata["masks"]), present[0]
        self._ended(action, [value for value in made if value.dtype.is_floating])

    def _passes_of(
        self, k: int, has_input: tuple[bool, ...], has_mask: tuple[bool, ...]
    ) -> tuple[Any, dict[str, list[bool]]]:
        """Returns the passes of a stage, and for each of its outputs whether it has a mask and logits.

        The function of the passes takes the inputs and masks that exist: a model's inputs may be optional. It returns
        the outputs, then their masks, the logits of outputs that are a softmax or a sigmoid, and the losses that layers
        add. Keras keeps these as attributes of tensors and layers, which are lost at the end of a function.

        Args:
            k: the stage.
            has_input: for each input of the stage, whether it exists.
            has_mask: for each input of the stage, whether it has a mask.
        """
        key = k, has_input, has_mask
        if key not in self._passes:
            stage, has_metadata = self._stages[k], dict[str, list[bool]]()

            def compute(*tensors: Any) -> list[Any]:
                rest = iter(tensors)
                own = [next(rest) if has_one else None for has_one in has_input]
                set_metadata(own, MASK, [next(rest) if has_one else None for has_one in has_mask])
                added: list[Any] = []
                made = stage.compute(own, training=True, added_losses=added)
                masks, logits = metadata_of(made, MASK), metadata_of(made, LOGITS)
                has_metadata["masks"] = [mask is not None for mask in masks]
                has_metadata["logits"] = [each is not None for each in logits]
                return [*made, *not_none(masks), *not_none(logits), *added]

            def recompute(state: Sequence[Any], *tensors: Any) -> list[Any]:
                # Repeats the random draws of the first computation, and discards updates of the state.
                changing = list(zip(stage.state_variables, state, strict=True))
                with keras.StatelessScope(changing, collect_losses=True):
                    return compute(*tensors)

            passes = self._parts.passes(
                self._placed.part(k),
                compute,
                self._variables[k],
                recompute=(stage.state, recompute) if k in self._remat else None,
                # In line, TensorFlow would merge the recomputation with the identical first computation.
                in_line=(self._in_line or stage.sums_over_replicas) and k not in self._remat,
                # Resharded passes are functions, which cannot run the layer's collective.
                reshard=self._reshard and not stage.sums_over_replicas,
                sums=True,
            )
            self._passes[key] = passes, has_metadata
        return self._passes[key]

    def _forward_ended(self, i: int, loss_function: LossFunction) -> None:
        """Computes the loss of a micro-batch; if the loss needs all rows at once, computes it after the last one."""
        number = self._schedule.num_microbatches
        # Other schedules begin a backward pass before the last forward pass, so they compute each loss separately.
        if i == 0 and number > 1 and self._schedule.runs_all_forward_first():
            try:
                with layer_api.joinable_microbatches():
                    self._compute_loss([i], loss_function)
            except layer_api.NeedsAllMicrobatchesError:
                self._joins_losses = True
        elif not self._joins_losses:
            self._compute_loss([i], loss_function)
        elif i == number - 1:
            self._compute_loss(range(number), loss_function)

    def _compute_loss(self, microbatches: Sequence[int], loss_function: LossFunction) -> None:
        outputs, state = self._placed.outputs, self._state
        # A model may return a tensor more than once.
        keys = [*dict.fromkeys((i, id(tensor)) for i in microbatches for tensor in outputs)]
        predicted = [self.values[i][tensor] for i, tensor in keys]
        masks = metadata_of(predicted, MASK)
        # Keras' losses read the logits from an attribute of a softmax' or sigmoid's output.
        logits = {key: state.logits[key] for key in keys if state.logits.get(key) is not None}
        added = {
            (i, "added", k, n): loss
            for i in microbatches
            for k in range(len(self._stages))
            for n, loss in enumerate(state.added.get((k, i), []))
        }
        penalties = {
            ("penalty", k, n): each for k, own in sorted(state.penalties.items()) for n, each in enumerate(own)
        }

        def compute(*tensors: Any) -> list[Any]:
            rest = iter(tensors)
            own, own_added, own_penalties, own_logits = (
                {key: next(rest) for key in group} for group in (keys, added, penalties, logits)
            )
            set_metadata(list(own.values()), MASK, masks)
            set_metadata(list(own.values()), LOGITS, [own_logits.get(key) for key in keys])
            return [
                loss_function(
                    microbatches,
                    [[own[i, id(tensor)] for tensor in outputs] for i in microbatches],
                    [
                        [*(loss for key, loss in own_added.items() if key[0] == i), *own_penalties.values()]
                        for i in microbatches
                    ],
                )
            ]

        given = [*predicted, *added.values(), *penalties.values(), *logits.values()]
        [loss], vjp = self._parts.passes(self._placed.part(len(self._stages) - 1), compute, [])(given)
        gradients, _ = vjp([layer_api.as_weighed(ops.ones_like(loss))])
        noted = [*keys, *added, *penalties, *((i, tensor, "logits") for i, tensor in logits)]
        for key, gradient in zip(noted, gradients, strict=True):
            state.note(key, gradient)

    def _backward(self, action: Action) -> None:
        k, i = action.stage, action.microbatch
        stage, part = self._stages[k], self._placed.part(k)
        vjp, num_masks, has_input = self._vjps.pop((k, i))
        with_logits = [tensor for tensor in stage.outputs if (i, id(tensor)) in self._state.logits]
        output_gradients = [self._gathered(part, (i, id(tensor))) for tensor in stage.outputs]
        output_gradients += [None] * num_masks + [
            self._gathered(part, (i, id(tensor), "logits")) for tensor in with_logits
        ]
        num_added = len(self._state.added[k, i])
        upstream = [*output_gradients, *(self._gathered(part, (i, "added", k, n)) for n in range(num_added))]
        after, dependencies = self._started(action, not_none(upstream)), []
        if action.kind is Kind.BACKWARD_INPUT:
            input_gradients, self._add_to_totals[k, i] = vjp.in_halves(upstream, after)
        else:
            input_gradients, self._totals[k] = vjp(upstream, after, self._totals[k])
            dependencies += not_none(self._totals[k])
        # `input_gradients` also has gradients of masks, after those of inputs; they are not used.
        given = [tensor for tensor, is_present in zip(stage.inputs, has_input, strict=True) if is_present]
        for tensor, gradient in zip(given, input_gradients, strict=False):
            if gradient is not None and id(tensor) not in self._from_outside:
                self._state.note((i, id(tensor)), gradient)
                dependencies.append(gradient)
        self._ended(action, dependencies or self._dependencies.last(part))

    def _weights_backward(self, action: Action) -> None:
        """Adds the gradients of a stage's weights, the second half of a backward pass, to the totals."""
        k = action.stage
        add_to = self._add_to_totals.pop((k, action.microbatch))
        self._totals[k] = add_to(self._totals[k], self._started(action, ()))
        self._ended(action, not_none(self._totals[k]) or self._dependencies.last(self._placed.part(k)))

    def _started(self, action: Action, given: Sequence[Any]) -> Sequence[Any]:
        """Returns the control dependencies of an action, and has its start reported to `on_action`."""
        part = self._placed.part(action.stage)
        dependencies = self._dependencies.last(part) or self._first_dependencies.get(part, [])
        if self._on_action is None:
            return dependencies
        on_action = self._on_action
        noted = layer_api.host_callback(lambda: on_action(action, False), [*dependencies, *given])
        self.recorded.append(noted)
        return [*dependencies, noted]

    def _ended(self, action: Action, dependencies: list[Any]) -> None:
        part = self._placed.part(action.stage)
        if (on_action := self._on_action) is not None:
            # Always after the start is recorded, because an action may have nothing to compute.
            after = [*dependencies, self.recorded[-1]]
            noted = layer_api.host_callback(lambda: on_action(action, True), after)
            # The next action waits for this, so that its start is not recorded before this action's end.
            dependencies = [noted]
            self.recorded.append(noted)
        self._dependencies.note(part, dependencies)

    def _gathered(self, part: int, key: Any) -> Any:
        """Returns the sum of the gradients received for a value; None if there are none."""
        return self._parts.added(part, self._state.upstream.pop(key, []))
