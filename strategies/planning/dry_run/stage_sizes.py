"""The sizes of a stage on one rank: weights, operations, and bytes, from formulas.

The sources are those of `step_time` and `step_bytes`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from strategies.planning.dry_run.job import Job
from strategies.planning.step_bytes import activation_bytes_of_layer


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
    def parameters(self) -> tuple[int, ...]:
        """The parameters of each weight on a rank, in the order of creation: tables, then block by block.

        The last stage has a copy of the table of tokens if another rank has the first stage.
        """
        model, t = self.job.model, self.job.layout.num_tensor
        h = model.hidden_size
        attention = [h, h, *[h * h // t, h // t] * 3, h * h // t, h]
        feed_forward = [h, h, 4 * h * h // t, 4 * h // t, 4 * h * h // t, h]
        tables = [self.table_parameters, -(-model.sequence_length // t) * h] if self.is_first else []
        copy = [self.table_parameters] if self.is_last and self.has_copied_table else []
        return (*tables, *(attention + feed_forward) * self.num_blocks, *copy)

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
    def message_bytes(self) -> float:
        """The bytes that a rank sends to the next stage: of a part of the sequence if it is cut."""
        layout = self.job.layout
        return self.boundary_bytes / (layout.num_tensor if layout.sequence_parallel else 1)

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
        logits = 4 * layout.microbatch_size * model.sequence_length * model.vocabulary_size / layout.num_tensor
        return self.num_blocks * activation_bytes_of_layer(model, layout) + (logits if self.is_last else 0.0)

    @property
    def state_bytes(self) -> float:
        """The bytes of weights, gradients and slots, as `shard` divides them."""
        layout, parameters = self.job.layout, sum(self.parameters)
        of_slots = 1 if layout.shard is None else layout.num_data
        of_weights = layout.num_data if layout.shard == "weights" else 1
        return parameters * ((4 + 2 + 4) / of_weights + 8 / of_slots)
