"""Fine-tunes a small task of KerasHub on a mesh, generates, saves, and compares with plain Keras on one device."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from tests.hub import tasks
from tests.hub.parity import coupling

#: Arguments of the strategy, by mesh.
MESHES: Mapping[str, Mapping[str, Any]] = {
    "data=2": {"mesh": {"data": 2}},
    "shard=weights": {"mesh": {"data": 2}, "shard": "weights"},
    "tensor=2": {"mesh": {"tensor": 2}},
    "pipe=2": {"mesh": {"pipe": 2}},
    "data=2, tensor=2": {"mesh": {"data": 2, "tensor": 2}},
    "pipe=2, tensor=2": {"mesh": {"pipe": 2, "tensor": 2}},
}
LIMIT = 1e-6
EPOCHS = 2
# A model whose rounding grows by more than this is compared with itself, begun one rounding away.
_GROWS = 10.0
#: Numbers by what they are of: losses, metrics and weights, predictions of what is saved, token ids, ...
Results = Mapping[str, list[np.ndarray]]


def strategy_of(mesh: str) -> Any:
    """Returns a strategy over logical CPUs."""
    arguments = MESHES[mesh]
    count = int(np.prod(list(arguments["mesh"].values())))
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(count)], **arguments)


def on_mesh(name: str, way: str, mesh: str, strategy: Any) -> Any:
    """Returns a task made, adapted and split in the scope of a strategy, then compiled, as a program does it."""
    with strategy.scope():
        model = tasks.build(name, way)
        if name in tasks.BALANCED and way != "QLoRA":
            # Makes the loss that balances experts that of the global batch; takes no quantized experts.
            model = keras_ext.replace_experts(model)
        if "tensor" in mesh:
            model = keras_ext.parallelize(model)
        if "pipe" in mesh:
            model = keras_ext.PipelineModel(model, num_microbatches=2)
        _compile(name, model)
    return model


@functools.cache
def on_one_device(name: str, way: str, samplers: tuple[str, ...] = ()) -> Results:
    """Returns the results of plain Keras, computed once for all meshes."""
    model = tasks.build(name, way)
    _compile(name, model)
    return results(name, model, samplers)


def differences(name: str, way: str, mesh: str, samplers: tuple[str, ...] = ()) -> dict[str, float]:
    """Returns the largest difference of each result between a mesh and one device, relative where it is above 1."""
    expected = on_one_device(name, way, samplers)
    strategy = strategy_of(mesh)
    found = results(name, on_mesh(name, way, mesh, strategy), samplers, strategy.scope)
    assert expected.keys() == found.keys(), (sorted(expected), sorted(found))
    return {kind: difference(expected[kind], found[kind]) for kind in expected}


def cell(name: str, way: str, mesh: str) -> str:
    """Returns the outcome on a mesh as the table shows it: the largest difference, or none, and the reason in brackets.

    A result that differs more, though one rounding in the first weights causes a similar difference in plain Keras, is
    given this reason.
    """
    try:
        on_one_device(name, way)
    except ValueError as error:
        return f"- [plain KerasHub on one device: {_first_sentence(error)}]"
    is_whole = mesh == "tensor=2" or (name in tasks.BALANCED and way != "QLoRA")
    reason = "" if is_whole else _coupling(name, way)
    if reason:
        return f"- [{reason}]"
    try:
        found = differences(name, way, mesh)
    except ValueError as error:
        return f"- [{_first_sentence(error)}]"
    text = f"{max(found.values()):.1e}"
    beyond = {kind: each for kind, each in found.items() if each > LIMIT}
    if not beyond:
        return text
    if name in tasks.BALANCED and "pipe" in mesh:
        return f"{text} [the loss that balances experts is computed for each micro-batch]"
    own = _after_one_rounding(name, way)
    kinds = ", ".join(f"{kind} {each:.1e}" for kind, each in sorted(beyond.items()))
    if all(each < _GROWS * own[kind] for kind, each in beyond.items()):
        return f"{text} [plain Keras, begun one rounding away, differs by {max(own[kind] for kind in beyond):.1e}]"
    return f"{text} [NOT EQUAL: {kinds}]"


@functools.cache
def _after_one_rounding(name: str, way: str) -> Mapping[str, float]:
    """Returns the differences of plain Keras from itself, begun with weights that are the next larger numbers."""
    model = tasks.build(name, way)
    moved = [
        np.nextafter(each, np.inf, dtype=each.dtype) if each.dtype == np.float32 else each
        for each in model.get_weights()
    ]
    model.set_weights(moved)
    _compile(name, model)
    expected, found = on_one_device(name, way), results(name, model, ())
    return {kind: difference(expected[kind], found[kind]) for kind in expected}


@functools.cache
def _coupling(name: str, way: str) -> str:
    """Returns the reason why replicas and micro-batches, which see some rows each, cannot equal one device, if any."""
    model = tasks.build(name, way)
    return coupling(model, _data(name)[0][0])


def _first_sentence(error: ValueError) -> str:
    """Returns the beginning of a refusal, without what would break a table."""
    return str(error).partition(". ")[0].partition("\n")[0].replace("|", "/").replace("[", "(").replace("]", ")") + "."


def results(
    name: str,
    model: Any,
    samplers: tuple[str, ...],
    scope: Callable[[], Any] = contextlib.nullcontext,
    *,
    saves: bool = True,
) -> Results:
    """Trains a compiled task, and returns all that is compared.

    Args:
        name: of its family.
        model: the task, or a pipeline of it.
        samplers: keys of `SAMPLERS` with which it generates, besides the greedy one.
        scope: of the strategy, in which an optimizer is made.
        saves: True to save the task, and to compare what plain KerasHub opens.
    """
    (inputs, targets, weights), prompts = _data(name)
    history = model.fit(
        *(inputs, targets, tasks.BATCH_SIZE),
        **{"sample_weight": weights, "epochs": EPOCHS, "shuffle": False, "verbose": 0},
    ).history
    found = {f"logs: {kind}": [np.asarray(values)] for kind, values in history.items()}
    found["weights"] = [np.asarray(weight) for weight in model.get_weights()]
    found["predictions"] = _predictions(model, inputs)
    if tasks.FAMILIES[name].generates:
        found["greedy"] = _generated(model, prompts)
        if samplers:
            last = int(found["greedy"][0][0, -1])
            found["greedy, stopped"] = _generated(model, prompts, (last, last + 1))
        for sampler in samplers:
            with scope():
                tasks.compile_task(model, sampler=SAMPLERS[sampler]())
            # Twice: the second call goes on with the random states of the first.
            for turn in ("first", "second"):
                found[f"{sampler}, {turn} call"] = _generated(model, prompts)
    if hasattr(tasks.class_of(name), "score"):
        found["scores"] = [np.asarray(model.score(inputs["token_ids"], inputs["padding_mask"]))]
    if not saves:
        return found
    with tempfile.TemporaryDirectory() as folder:
        found |= _saved(name, model, inputs, pathlib.Path(folder))
    return found


@functools.cache
def _data(name: str) -> tuple[tuple[Any, Any, Any], Any]:
    """Returns what a family is trained with, and its prompts if it generates."""
    task = tasks.build(name, "full")
    return tasks.data_of(task), tasks.prompts_of(task) if tasks.FAMILIES[name].generates else None


def _generated(model: Any, prompts: Any, stop_token_ids: tuple[int, ...] | None = None) -> list[np.ndarray]:
    """Returns what a task generates from token ids."""
    if isinstance(model, tasks.class_of("Gemma3CausalLM")):
        # Without a preprocessor, its `generate` cannot put together the images, which a text has none of.
        made = model.make_generate_function()({**prompts}, stop_token_ids=stop_token_ids)
        return [np.asarray(made[kind]) for kind in ("token_ids", "padding_mask")]
    return _arrays(model.generate({**prompts}, stop_token_ids=stop_token_ids))


def _saved(name: str, model: Any, inputs: Any, folder: pathlib.Path) -> dict[str, list[np.ndarray]]:
    """Returns weights and predictions of the model's file and of its preset, opened by plain KerasHub."""
    model.save(folder / "model.keras")
    model.save_to_preset(str(folder / "preset"))
    found = {}
    for kind, opened in (
        ("file", keras.saving.load_model(folder / "model.keras")),
        ("preset", tasks.class_of(name).from_preset(str(folder / "preset"), preprocessor=None)),
    ):
        assert all(_library(each) in ("keras", "keras_hub") for each in opened._flatten_layers()), opened
        found[f"{kind}: weights"] = [np.asarray(weight) for weight in opened.get_weights()]
        found[f"{kind}: predictions"] = _arrays(opened(inputs))
    return found


def _samplers() -> Mapping[str, Callable[[], Any]]:
    import keras_hub

    made = keras_hub.samplers
    return {
        "top-k": lambda: made.TopKSampler(k=5, seed=3),
        "top-p": lambda: made.TopPSampler(p=0.8, seed=3),
        "beam": lambda: made.BeamSampler(num_beams=3),
    }


def _compile(name: str, model: Any) -> None:
    tasks.compile_task(model, **({"sampler": "greedy"} if tasks.FAMILIES[name].generates else {}))


def _arrays(tensors: Any) -> list[np.ndarray]:
    return [np.asarray(each) for each in keras.tree.flatten(tensors)]


def _predictions(model: Any, inputs: Any) -> list[np.ndarray]:
    return _arrays(model.predict(inputs, batch_size=tasks.BATCH_SIZE, verbose=0))


def _library(layer: Any) -> str:
    return type(layer).__module__.partition(".")[0]


def difference(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Returns the largest difference, relative where numbers are above 1; infinity between other shapes."""
    if [each.shape for each in one] != [each.shape for each in other]:
        return float("inf")
    pairs = ((a.astype("float64"), b.astype("float64")) for a, b in zip(one, other, strict=True) if a.size)
    return max((float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(a)))) for a, b in pairs), default=0.0)


SAMPLERS = _samplers()
