"""A job to be run dry: the model, its mesh, and the order in which stages compute."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.planning.layout import Layout, ScheduleName
from strategies.planning.transformer import Transformer
from strategies.schedules import SCHEDULES, Schedule, validate

#: The schedules that a `Layout` names. Of others, it has those of 1F1B.
_NAMED: Mapping[str, ScheduleName] = {"zb_h1": "zb_h1", "zb_v": "zb_v", "v_half": "v_half"}


@dataclass(frozen=True)
class Job:
    """A training job of a transformer.

    Attributes:
        model: the model.
        layout: the mesh, and how a batch is computed on it.
        batch_size: rows of the global batch.
        schedule_name: a key of `strategies.schedules.SCHEDULES`.
        stages: the number of blocks of each stage.
        activation_bytes: bytes of a number of an activation: 2 in half precision.
        bucket_bytes: the maximum size of a bucket of gradients, or of a unit of sharded weights.
        table: the schedule; None for that of `schedule_name`.

    Example:

        job = Job.create(Transformer(8, 64, 4), Layout(num_data=2, num_stages=2), batch_size=8)
        assert job.stages == (4, 4) and job.schedule_name == "1f1b"
    """

    model: Transformer
    layout: Layout
    batch_size: int
    schedule_name: str
    stages: tuple[int, ...]
    activation_bytes: int = 2
    bucket_bytes: int = 32 * 2**20
    table: Schedule | None = None

    def __post_init__(self) -> None:
        number = self.layout.num_stages * self.chunks
        if len(self.stages) != number or min(self.stages) < 1 or sum(self.stages) != self.model.num_layers:
            raise ValueError(
                f"The schedule {self.schedule_name!r} on {self.layout.num_stages} positions along 'pipe' has {number} "
                f"stages: each has at least one block, and all have {self.model.num_layers}. "
                f"Received: stages={self.stages}."
            )

    @classmethod
    def create(
        cls,
        model: Transformer,
        layout: Layout,
        batch_size: int,
        *,
        schedule: str | None = None,
        stages: Sequence[int] | None = None,
    ) -> Job:
        """Returns a job.

        Args:
            model: the model.
            layout: the mesh, and how a batch is computed on it.
            batch_size: rows of the global batch.
            schedule: the name of a schedule; None for that of the layout.
            stages: the number of blocks of each stage; None for equal ones, larger ones first.

        Raises:
            ValueError: an unknown schedule, or stages or rows that do not divide.
        """
        name = schedule or ("interleaved_1f1b" if layout.num_chunks > 1 else layout.schedule)
        if name not in SCHEDULES:
            raise ValueError(f"The schedules are {', '.join(SCHEDULES)}. Received: schedule={name!r}.")
        if model.experts is not None or model.lora is not None or layout.num_expert > 1:
            raise ValueError(
                "A dry run is of a transformer without experts and adapters: leave them out. Received: "
                f"experts={model.experts}, lora={model.lora}, num_expert={layout.num_expert}."
            )
        chunks = max(2, layout.num_chunks) if name == "interleaved_1f1b" else 1
        layout = replace(layout, num_chunks=chunks, schedule=_NAMED.get(name, "1f1b"))
        layout.num_microbatches(batch_size)
        number = layout.num_stages * layout.chunks_of_device
        if stages is None:
            even, more = divmod(model.num_layers, number)
            stages = [even + (k < more) for k in range(number)]
        return cls(model, layout, batch_size, name, tuple(stages))

    @property
    def chunks(self) -> int:
        """The stages of each position along "pipe"."""
        return self.layout.chunks_of_device

    @property
    def mesh(self) -> Mapping[str, int]:
        """The sizes of the mesh."""
        return self.layout.mesh

    @property
    def num_microbatches(self) -> int:
        """The micro-batches of each replica."""
        return self.layout.num_microbatches(self.batch_size)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The table of computations.

        Raises:
            ValueError: the table cannot run; the message shows it, with the fault marked.
        """
        if self.table is None:
            sizes = (self.layout.num_stages, self.num_microbatches)
            chunks = (self.chunks,) if self.schedule_name == "interleaved_1f1b" else ()
            table = SCHEDULES[self.schedule_name](*sizes, *chunks)
        else:
            table = self.table
        validate(table)
        return table
