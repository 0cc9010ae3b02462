"""The kinds of sharding that parity tests cover, and the cases that run with each."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import pytest

import strategies
from tests.covering import covering
from tests.releases import is_there
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.cases_sharded import OWN, PARTS
from tests.strategies.parity.selection import IN_A_CONDITIONAL
from tests.strategies.parity.table import World, title

#: Each treatment of gradients by an optimizer, and all other changes of weights or slots.
IN_ONE_PROCESS = (
    "Adafactor",
    "SGD, clipnorm",
    "Adam, EMA with overwrite",
    "MultiOptimizer",
    "Embedding, sparse gradients, clipnorm",
    "mixed_float16, overflow on one replica only",
    "custom loop, loss over the global batch",
    "clip_by_global_norm in train_step, gradient_accumulation_steps",
    # Two processes save and load slices.
    *(name for name in OWN if name != "saved, loaded, gone on"),
)
#: Cases that gather or write weights, and optimizers that look at weights.
WEIGHTS_IN_ONE_PROCESS = (
    "SpectralNormalization",
    "ScheduleFreeAdamW",
    "SGD, gradients left in accumulation",
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "train_on_batch, test_on_batch, predict_on_batch",
    "sharpness-aware minimization",
    "recompute_grad and custom_gradient",
    "optimizer that overrides apply_gradients",
    "weights of 1, 5 and 7 numbers, excluded from weight decay",
    "whole weights saved, loaded, gone on",
)
#: Cases that cross processes: sums of parts, norms, overflows, sparse gradients, averages, files.
WEIGHTS_BETWEEN_PROCESSES = (
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "mixed_float16, overflow on one replica only",
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "sharpness-aware minimization",
    "recompute_grad and custom_gradient",
    "optimizer that overrides apply, gradient_accumulation_steps",
    "Embedding, sparse gradients, clipnorm",
    "saved, loaded, gone on",
    "float8, int8 with LoRA, int4",
)
OVER_HOROVOD = (
    "Adam, EMA",
    "Embedding, sparse gradients",
    "whole weights saved, loaded, gone on",
)
#: Cases with work that is done once for each group, or between groups.
IN_GROUPS = (
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "Embedding, sparse gradients, clipnorm",
)
WEIGHTS_IN_GROUPS = (
    # Its powers show if ops that are no replica's are optimized as one device's.
    "Ftrl",
    "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
    "whole weights saved, loaded, gone on",
)
#: The model in parts that contains the features of all others.
ONE_PART = ("a transformer in parts, norms, averages and overflows of all",)


class Sharding(NamedTuple):
    """A kind of sharding: devices, replicas of a group (None for all), mesh as text, and what is sharded."""

    world: World
    size: int | None = None
    mesh: str = "data=-1"
    shard: str = "optimizer"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the strategy."""
        axes = strategies.DeviceMesh.axes_of(self.mesh)
        return {"shard": self.shard, "shard_size": self.size, "mesh": axes}

    def __str__(self) -> str:
        groups = f", by {self.size}" if self.size else ""
        what = "" if self.shard == "optimizer" else f", {self.shard}"
        return title(self.world) + groups + (f", {self.mesh}" if "=2" in self.mesh else "") + what


SHARDINGS: dict[Sharding, tuple[str, ...]] = {
    Sharding(("MirroredStrategy", 1, 3)): IN_ONE_PROCESS,
    Sharding(("MirroredStrategy", 1, 4), 2): IN_GROUPS,
    Sharding(("MirroredStrategy", 1, 3), shard="weights"): WEIGHTS_IN_ONE_PROCESS,
    Sharding(("MirroredStrategy", 1, 4), 2, shard="weights"): WEIGHTS_IN_GROUPS,
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), shard="weights"): WEIGHTS_BETWEEN_PROCESSES,
    Sharding(("HorovodStrategy", 2, 1), shard="weights"): OVER_HOROVOD,
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,pipe=2", "weights"): (*ONE_PART, "float8 in parts"),
}
SELDOM = (
    Sharding(("MultiWorkerMirroredStrategy", 2, 2)),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,pipe=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), 2),
    Sharding(("HorovodStrategy", 3, 1)),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,tensor=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), 2),
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,pipe=2"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,tensor=2"),
    Sharding(("MirroredStrategy", 1, 2)),
    Sharding(("MirroredStrategy", 1, 4)),
    Sharding(("MultiWorkerMirroredStrategy", 2, 1)),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1)),
    Sharding(("HorovodStrategy", 2, 1)),
    Sharding(("HorovodStrategy", 4, 1), 2),
    Sharding(("MirroredStrategy", 1, 2), shard="weights"),
    Sharding(("MirroredStrategy", 1, 4), shard="weights"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 1), shard="weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), 2, shard="weights"),
    Sharding(("HorovodStrategy", 4, 1), 2, shard="weights"),
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,tensor=2"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), None, "data=2,tensor=2"),
    Sharding(("MirroredStrategy", 1, 4), None, "data=2,tensor=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), None, "data=2,pipe=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,pipe=2"),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,tensor=2"),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,pipe=2"),
    Sharding(("MultiWorkerMirroredStrategy", 2, 2), None, "data=2,tensor=2", "weights"),
    Sharding(("MultiWorkerMirroredStrategy", 4, 1), None, "data=2,pipe=2", "weights"),
    Sharding(("HorovodStrategy", 4, 1), None, "data=2,tensor=2", "weights"),
)


#: Cases of `SHARDINGS` that run with `--parity-all` only. Files of whole weights are saved and opened on groups, over
#: Horovod, and by `test_files_go_on_with_another_number_of_owners_or_none`. Between processes, the forms of batches are
#: those of the same world without shards; several gradients a step are sharded in one process. The surface's sample has
#: float8 in stages. The case on groups has averages, too.
LIKE_OTHERS = {
    "Mirrored, 3 devices: Adam, EMA with overwrite",
    "Mirrored, 3 devices: whole weights saved, loaded, gone on",
    "Mirrored, 3 devices, weights: whole weights saved, loaded, gone on",
    "Mirrored, 4 devices, data=2,pipe=2, weights: float8 in parts",
    "MultiWorkerMirrored, 2 processes x 2 devices, weights: "
    "arrays, a batch that does not divide, a last batch smaller than the replicas",
    "MultiWorkerMirrored, 2 processes x 2 devices, weights: sharpness-aware minimization",
}


def properties_of(sharding: Sharding) -> dict[str, Hashable]:
    """Returns on which properties of a sharding the code that runs depends."""
    engine, num_processes, num_local = sharding.world
    return {
        "engine": engine,
        "several processes": num_processes > 1,
        "several devices in a process": num_local > 1,
        "more than two replicas": num_processes * num_local > 2,
        "groups": sharding.size is not None,
        "shard": sharding.shard,
    }


def cost_of(sharding: Sharding) -> float:
    """Returns what a case costs, in units of about a second of a core: each process traces it, for each device."""
    _, num_processes, num_local = sharding.world
    return (2 + num_processes) * max(1.0, 0.6 * num_local)


@functools.cache
def cases_by_sharding() -> dict[Sharding, list[str]]:
    """Returns the cases of `--parity-all`: each runs with every pair of properties, the cases together with all."""
    whole = [each for each in (*SHARDINGS, *SELDOM) if "=2" not in each.mesh]
    cases: dict[Sharding, list[str]] = {each: list(names) for each, names in SHARDINGS.items()}
    for i, name in enumerate((*ALL, *OWN)):
        for each in covering(whole, properties_of, cost_of, first=i):
            # An error on one process ends the job, and so the other cases.
            may_run = each.world[1] == 1 or refusal_of(each, name) is None
            if may_run and name not in cases.setdefault(each, []):
                cases[each].append(name)
    return cases


#: Programs with a layer that sets a trainable weight of its own in a step.
SET_A_WEIGHT = ("SpectralNormalization", "diffusion")


def refusal_of(sharding: Sharding, name: str) -> str | None:
    """Returns a part of the error with which a sharding refuses a case; None if the case runs."""
    if name == IN_A_CONDITIONAL and sharding.world[2] > 1:
        return "applied inside a tf.cond.*without `shard`"
    if name in SET_A_WEIGHT and sharding.shard == "weights" and sharding.size is not None:
        return r"sets a trainable weight of its own.*Leave shard_size out"
    return None


def cases_of(sharding: Sharding, config: pytest.Config) -> list[str]:
    names: Sequence[str] = [name for name in SHARDINGS.get(sharding, ()) if f"{sharding}: {name}" not in LIKE_OTHERS]
    if config.getoption("--parity-all"):
        if "=2" in sharding.mesh:
            return list(PARTS)
        names = [*ALL, *OWN] if config.getoption("--parity-product") else cases_by_sharding().get(sharding, ())
    return [name for name in names if is_there(name)]
