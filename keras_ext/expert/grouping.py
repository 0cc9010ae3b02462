"""Sorts tokens by the experts that compute them, and restores their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops


@dataclass(frozen=True)
class Grouping:
    """The slots of the sorted tokens: all choices of the first expert come first, then those of the second one.

    A token has a slot for each of its choices. Choices of one expert stay in the order of the tokens.

    Attributes:
        counts: the number of choices of each expert, int32, `[num_experts]`.
        slots: the slot of each choice, int32, `[tokens, choices]`.
        choices: the choice in each slot, as an index into the flattened choices, int32, `[tokens * choices]`.
        tokens: the index of the token in each slot, int32, `[tokens * choices]`.
    """

    counts: Any
    slots: Any
    choices: Any
    tokens: Any

    @classmethod
    def from_experts(cls, experts: Any, num_experts: int) -> Grouping:
        """Returns the grouping of choices by expert.

        Args:
            experts: the expert of each choice, int32, `[tokens, choices]`.
            num_experts: number of experts, including those without tokens.
        """
        num_choices = int(experts.shape[1])
        flat = ops.reshape(experts, (-1,))
        # A counting sort takes one pass. It counts in float32, which GPUs can accumulate and which is exact here.
        is_of = ops.one_hot(flat, num_experts, dtype="float32")
        counts = ops.sum(is_of, axis=0)
        first = ops.cumsum(counts) - counts
        slots = ops.cast(ops.sum(is_of * (ops.cumsum(is_of, axis=0) - 1.0 + first), axis=-1), "int32")
        total = ops.shape(flat)[0]
        own = ops.arange(total, dtype="int32")
        # Not `own // num_choices`: a constant divisor that equals the number of rows would be taken for a mean.
        of_tokens = ops.repeat(ops.arange(ops.shape(experts)[0], dtype="int32"), num_choices)
        choices, tokens = (ops.scatter(slots[:, None], each, (total,)) for each in (own, of_tokens))
        return cls(ops.cast(counts, "int32"), ops.reshape(slots, (-1, num_choices)), choices, tokens)

    def sorted(self, tokens: Any) -> Any:
        """Returns the token of each slot, `[slots, features]`, of tokens `[tokens, features]`."""

        # Both gathers are permutations with repetitions, so their gradients are gathers, too. TensorFlow's own gradient
        # would scatter row by row, in no fixed order on a GPU.
        @ops.custom_gradient
        def gather(values: Any) -> Any:
            def backward(*upstream: Any) -> Any:
                (gradient,) = upstream
                return ops.sum(ops.take(gradient, self.slots, axis=0), axis=1)

            return ops.take(values, self.tokens, axis=0), backward

        return gather(tokens)

    def gather(self, rows: Any) -> Any:
        """Returns the row of each choice of a token, `[tokens, choices, features]`, of rows `[slots, features]`."""

        @ops.custom_gradient
        def gather(values: Any) -> Any:
            def backward(*upstream: Any) -> Any:
                (gradient,) = upstream
                flat = ops.reshape(gradient, (-1, gradient.shape[-1]))
                return ops.take(flat, self.choices, axis=0)

            return ops.take(values, self.slots, axis=0), backward

        return gather(rows)


def groups_of(rows: Any, counts: Any, num_groups: int) -> Sequence[Any]:
    """Splits sorted rows into one tensor per expert; some may be empty.

    Args:
        rows: `[slots, features]`.
        counts: the number of rows of each expert, int32, `[num_groups]`; they add up to the number of slots.
        num_groups: number of experts.
    """
    bounds = ops.cumsum(counts)

    # TensorFlow's gradient of a slice has the size of the sliced tensor: all slices would need it `num_groups` times.
    @ops.custom_gradient
    def cut(values: Any) -> Any:
        def backward(*upstream: Any) -> Any:
            return ops.concatenate(list(upstream), axis=0)

        ends = [bounds[e] for e in range(num_groups)]
        return [values[0 if e == 0 else ends[e - 1] : ends[e]] for e in range(num_groups)], backward

    groups: Sequence[Any] = cut(rows)
    return groups
