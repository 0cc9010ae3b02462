"""The sizes of what is measured. Pure: standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One block and its batch.

    Attributes:
        num_experts: number of experts.
        top_k: number of experts that each token takes.
        features: of each token.
        hidden_dim: of each expert.
        rows: of a batch.
        length: tokens in a row.
        num_steps: measured in each round.
    """

    num_experts: int
    top_k: int
    features: int
    hidden_dim: int
    rows: int
    length: int
    num_steps: int

    @property
    def label(self) -> str:
        """The sizes, in words."""
        tokens = self.rows * self.length
        return f"{self.num_experts} experts, top {self.top_k}, {self.features} x {self.hidden_dim}, {tokens} tokens"

    def sent(self, num_processes: int) -> float:
        """Bytes that each of so many processes sends in a step by the all-to-alls of its experts, in float32.

        There and back, forward and backward, of the choices whose experts are elsewhere, loads being even.
        """
        choices = self.rows * self.length * self.top_k / num_processes
        return 4 * choices * (num_processes - 1) / num_processes * self.features * 4


@dataclass(frozen=True)
class Table:
    """One embedding and its batch.

    Attributes:
        rows: of the table.
        columns: of the table.
        lookups: of a global batch, in rows that are drawn evenly.
        optimizer: by Keras' name.
        num_steps: measured in each round.
    """

    rows: int
    columns: int
    lookups: int
    optimizer: str
    num_steps: int

    @property
    def label(self) -> str:
        """The sizes, in words."""
        return f"{self.rows:,} x {self.columns}, {self.lookups} lookups, {self.optimizer}"

    def sent(self, num_processes: int) -> float:
        """Bytes that each of so many processes sends in a step, if it looks up no row twice.

        Indices forward and backward, rows and gradients, of the rows that are elsewhere.
        """
        elsewhere = self.lookups / num_processes * (num_processes - 1) / num_processes
        return elsewhere * (2 * 4 + 2 * 4 * self.columns)
