"""The definition of a measurement. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One measurement, the same for all contenders but for the number of rows.

    Attributes:
        width: the size of hidden states; a multiple of 64, the size of a head.
        num_blocks: the number of transformer blocks; even.
        num_rows: the number of prompts.
        num_prompt_tokens: the length of each prompt.
        num_new_tokens: the number of tokens to generate for each prompt.
        num_rounds: the number of measurements of each contender.
    """

    width: int
    num_blocks: int
    num_rows: int
    num_prompt_tokens: int
    num_new_tokens: int
    num_rounds: int
