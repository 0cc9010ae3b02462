"""The flags that choose models and their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from absl import flags

from mirrored.workload import Workload

#: By model: the prefix of its flags, and its name in their help.
_NAMES = {"small_cnn": ("cnn", "the small CNN"), "resnet50": ("resnet", "ResNet50")}

# The flags below count as key flags of the calling program, so that its --helpshort shows them.
flags.disclaim_key_flags()


def define_flags(defaults: Iterable[Workload], of_batch: str) -> None:
    """Defines --model, and for each model the number of rounds, the batch size and the number of steps.

    Args:
        defaults: a workload of each model.
        of_batch: what a batch is trained on, as in the help text.
    """
    models = [default.model for default in defaults]
    flags.DEFINE_multi_enum("model", models, models, "What to train; repeatable.")
    for default in defaults:
        prefix, name = _NAMES[default.model]
        for flag, value, text in (
            ("rounds", default.num_rounds, f"Measurements of each contender with {name}."),
            ("batch_size", default.batch_size, f"Images in one step of {name}, {of_batch}."),
            ("steps", default.num_steps, f"Measured steps of {name} in each round."),
        ):
            flags.DEFINE_integer(f"{prefix}_{flag}", value, text, lower_bound=1)


def workloads(defaults: Iterable[Workload]) -> list[Workload]:
    """Returns the workloads that the flags select."""
    by_model = {default.model: default for default in defaults}
    found = []
    for model in dict.fromkeys(flags.FLAGS.model):
        rounds, batch_size, steps = (
            getattr(flags.FLAGS, f"{_NAMES[model][0]}_{flag}") for flag in ("rounds", "batch_size", "steps")
        )
        found.append(replace(by_model[model], num_rounds=rounds, batch_size=batch_size, num_steps=steps))
    return found
