"""The sizes of a stage on one rank: weights, operations, and bytes, from formulas.

The sources are those of `step_time` and `step_bytes`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from strategies.planning.dry_run.job import Job
from strategies.planning.step_bytes import activation_bytes_of_layer

TABLES, LOGITS = "tables", "logits"


def attention_of(block: int) -> str:
    """Returns the name of a block's attention."""
    return f"attention of block {block}"


def feed_forward_of(block: int) -> str:
    """Returns the name of a block's feed-forward part."""
    return f"feed-forward of block {block}"


@dataclass(frozen=True)
class StageWeight:
    """A weight of a stage on one rank.

    Attributes:
        parameters: its elements on the rank.
        part: the part of the stage that uses it first: `TABLES`, `LOGITS`, or one of a block.
        is_split: whether it is split over the axis "tensor".
        is_shared: whether stages of other ranks use it as well: the table of tokens.
        in_backward: whether the backward pass reads it.
    """

    parameters: int
    part: str
    is_split: bool = False
    is_shared: bool = False
    in_backward: bool = False


@dataclass(frozen=True)
class StageSizes:
    """A stage of a job on one of its ranks.

    Attributes:
        job: the job.
        stage: its number.
    """

    job: Job
    stage: int

    @property
    def num_blocks(self) -> int:
        """Its blocks."""
        return self.job.stages[self.stage]

    @property
    def is_first(self) -> bool:
        """True if it looks up tokens and positions."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """True if it computes the logits and the loss."""
        return self.stage == len(self.job.stages) - 1

    @functools.cached_property
    def table_parameters(self) -> int:
        """The parameters of a rank's shard of the table of tokens, which the logits use as well."""
        return -(-self.job.model.vocabulary_size // self.job.layout.num_tensor) * self.job.model.hidden_size

    @functools.cached_property
    def weights(self) -> tuple[StageWeight, ...]:
        """The weights on a rank in the order of their first use: tables, block by block, and the table of the logits.

        The last stage has a copy of the table of tokens if another rank has the first stage.
        """
        found: list[StageWeight] = []
        shared = self.has_copied_table
        if self.is_first:
            found.append(StageWeight(self.table_parameters, TABLES, True, shared, not shared))
            found.append(StageWeight(-(-self.job.model.sequence_length // self._t) * self._h, TABLES, True))
        for block in range(self.num_blocks):
            found += self._attention(attention_of(block)) + self._feed_forward(feed_forward_of(block))
        if self.is_last and shared:
            found.append(StageWeight(self.table_parameters, LOGITS, True, True, True))
        return tuple(found)

    @property
    def parameters(self) -> int:
        """The parameters on a rank."""
        return sum(each.parameters for each in self.weights)

    def _attention(self, part: str) -> list[StageWeight]:
        h, t = self._h, self._t
        kernel = StageWeight(h * h // t, part, True, in_backward=True)
        projection = [kernel, StageWeight(h // t, part, True)]
        return [*self._normalization(part), *projection * 3, kernel, StageWeight(h, part)]

    def _feed_forward(self, part: str) -> list[StageWeight]:
        h, t = self._h, self._t
        kernel = StageWeight(4 * h * h // t, part, True, in_backward=True)
        return [*self._normalization(part), kernel, StageWeight(4 * h // t, part, True), kernel, StageWeight(h, part)]

    def _normalization(self, part: str) -> list[StageWeight]:
        return [StageWeight(self._h, part, in_backward=True), StageWeight(self._h, part)]

    @property
    def _h(self) -> int:
        return self.job.model.hidden_size

    @property
    def _t(self) -> int:
        return self.job.layout.num_tensor

    @property
    def has_copied_table(self) -> bool:
        """True if the first and the last stage are on different ranks, so that both have the table of tokens."""
        schedule = self.job.schedule
        return schedule.device_of(0) != schedule.device_of(schedule.num_stages - 1)

    @property
    def boundary_bytes(self) -> float:
        """The bytes of a micro-batch's hidden states, whole."""
        model = self.job.model
        return float(
            self.job.activation_bytes * self.job.layout.microbatch_size * model.sequence_length * model.hidden_size
        )

    @property
    def logits_bytes(self) -> float:
        """The bytes of a micro-batch's logits, whole."""
        model, rows = self.job.model, self.job.layout.microbatch_size
        return float(self.job.activation_bytes * rows * model.sequence_length * model.vocabulary_size)

    @property
    def forward_work(self) -> float:
        """The floating-point operations of a micro-batch's forward pass on a rank."""
        return self.num_blocks * self.block_work + (self.logits_work if self.is_last else 0.0)

    @property
    def block_work(self) -> float:
        """The operations of a block's forward pass (arXiv:2104.04473, formula 3)."""
        model, layout = self.job.model, self.job.layout
        s, h = model.sequence_length, model.hidden_size
        return 24.0 * layout.microbatch_size * s * h**2 * (1 + s / (6 * h)) / layout.num_tensor

    @property
    def logits_work(self) -> float:
        """The operations of the logits' forward pass."""
        model, layout = self.job.model, self.job.layout
        tokens = layout.microbatch_size * model.sequence_length
        return 2.0 * tokens * model.hidden_size * model.vocabulary_size / layout.num_tensor

    @property
    def activation_bytes(self) -> float:
        """The bytes that a micro-batch holds from its forward to its backward pass."""
        model, layout = self.job.model, self.job.layout
        # The last stage of a pipeline joins the logits of its shards.
        shards = layout.num_tensor if self.job.schedule.num_stages == 1 else 1
        logits = 4 * layout.microbatch_size * model.sequence_length * model.vocabulary_size / shards
        return self.num_blocks * activation_bytes_of_layer(model, layout) + (logits if self.is_last else 0.0)

    @property
    def state_bytes(self) -> float:
        """The bytes of weights, gradients and slots, as `shard` divides them."""
        layout, parameters = self.job.layout, self.parameters
        of_slots = 1 if layout.shard is None else layout.num_data
        of_weights = layout.num_data if layout.shard == "weights" else 1
        return parameters * ((4 + 2 + 4) / of_weights + 8 / of_slots)
