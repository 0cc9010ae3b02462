"""The sizes of the measured blocks and tables. Pure: standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One block and its batch.

    Attributes:
        num_experts: number of experts.
        top_k: number of experts per token.
        features: size of each token.
        hidden_dim: hidden units of each expert.
        rows: rows of a batch.
        length: number of tokens in a row.
        num_steps: number of measured steps in each round.
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
        """Returns the bytes that each process sends in a step by the all-to-alls of its experts, in float32.

        Choices of experts on other ranks are sent and returned, forward and backward; assumes even loads.
        """
        choices = self.rows * self.length * self.top_k / num_processes
        return 4 * choices * (num_processes - 1) / num_processes * self.features * 4


@dataclass(frozen=True)
class Table:
    """One embedding and its batch.

    Attributes:
        rows: number of rows of the table.
        columns: number of columns of the table.
        lookups: number of lookups of a global batch, in uniformly drawn rows.
        optimizer: Keras' name of the optimizer.
        num_steps: number of measured steps in each round.
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
        """Returns the bytes that each process sends in a step, if it looks up no row twice.

        For rows on other ranks: indices forward and backward, rows, and gradients.
        """
        elsewhere = self.lookups / num_processes * (num_processes - 1) / num_processes
        return elsewhere * (2 * 4 + 2 * 4 * self.columns)
