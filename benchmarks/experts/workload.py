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
