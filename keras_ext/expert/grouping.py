"""Tokens in the order of the experts that compute them, and back."""

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
        counts: of the choices of each expert, int32, `[num_experts]`.
        slots: of each choice, int32, `[tokens, choices]`.
        choices: of each slot, counted through the tokens, int32, `[tokens * choices]`.
        tokens: of each slot, int32, `[tokens * choices]`.
    """

    counts: Any
    slots: Any
    choices: Any
    tokens: Any

    @classmethod
    def of(cls, experts: Any, num_experts: int) -> Grouping:
        """Returns the grouping of choices.

        Args:
            experts: the expert of each choice, int32, `[tokens, choices]`.
            num_experts: number of experts, those without tokens included.
        """
        num_choices = int(experts.shape[1])
        flat = ops.reshape(experts, (-1,))
        # Counted, not sorted by comparison: one pass. In float32, which GPUs can accumulate, and which is exact here.
        is_of = ops.one_hot(flat, num_experts, dtype="float32")
        counts = ops.sum(is_of, axis=0)
        first = ops.cumsum(counts) - counts
        slots = ops.cast(ops.sum(is_of * (ops.cumsum(is_of, axis=0) - 1.0 + first), axis=-1), "int32")
        total = ops.shape(flat)[0]
        own = ops.arange(total, dtype="int32")
        # Not divided out of the choices: a constant that happens to be the number of rows says that there is a mean.
        of_tokens = ops.repeat(ops.arange(ops.shape(experts)[0], dtype="int32"), num_choices)
        choices, tokens = (ops.scatter(slots[:, None], each, (total,)) for each in (own, of_tokens))
        return cls(ops.cast(counts, "int32"), ops.reshape(slots, (-1, num_choices)), choices, tokens)

    def sorted(self, tokens: Any) -> Any:
        """Returns the token of each slot, `[slots, features]`, of tokens `[tokens, features]`."""

        # Both gathers are permutations with repetitions: their gradients are gathers, too. TensorFlow's own gradient
        # would scatter, row by row, and in no fixed order on a GPU.
        @ops.custom_gradient
        def gather(values: Any) -> Any:
            def backward(*upstream: Any) -> Any:
                (gradient,) = upstream
                return ops.sum(ops.take(gradient, self.slots, axis=0), axis=1)

            return ops.take(values, self.tokens, axis=0), backward

        return gather(tokens)

    def of_choices(self, rows: Any) -> Any:
        """Returns what each choice of a token gave, `[tokens, choices, features]`, of what is in the slots."""

        @ops.custom_gradient
        def gather(values: Any) -> Any:
            def backward(*upstream: Any) -> Any:
                (gradient,) = upstream
                flat = ops.reshape(gradient, (-1, gradient.shape[-1]))
                return ops.take(flat, self.choices, axis=0)

            return ops.take(values, self.slots, axis=0), backward

        return gather(rows)


def groups_of(rows: Any, counts: Any, num_groups: int) -> Sequence[Any]:
    """Returns sorted rows as one tensor for each expert, some of which may be empty.

    Args:
        rows: `[slots, features]`.
        counts: of the rows of each expert, int32, `[num_groups]`; they add up to the slots.
        num_groups: number of experts.
    """
    bounds = ops.cumsum(counts)

    # The gradient of a slice is as large as what it was cut from: of one for each expert, `num_groups` times.
    @ops.custom_gradient
    def cut(values: Any) -> Any:
        def backward(*upstream: Any) -> Any:
            return ops.concatenate(list(upstream), axis=0)

        ends = [bounds[e] for e in range(num_groups)]
        return [values[0 if e == 0 else ends[e - 1] : ends[e]] for e in range(num_groups)], backward

    groups: Sequence[Any] = cut(rows)
    return groups
