"""KerasHub's tasks as small models with random weights, and their data: a list of families, each made by name."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from tests.hub import backbones

#: Batches of four, and one of two. Two replicas get two rows each, then one.
ROWS = 10
BATCH_SIZE = 4
RANK = 2
WAYS = ("full", "LoRA", "QLoRA")


@dataclass(frozen=True)
class Family:
    """A task class of KerasHub and the backbone that it is made of.

    Attributes:
        task: name of the class.
        backbone: name of its backbone's class.
        arguments: constructor arguments besides the backbone and the preprocessor.
        of_backbone: constructor arguments of the backbone besides the usual ones.
    """

    task: str
    backbone: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    of_backbone: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generates(self) -> bool:
        """True for a task that continues, or answers, a prompt."""
        return self.task.endswith(("CausalLM", "Seq2SeqLM"))


def _causal(name: str) -> Family:
    return Family(f"{name}CausalLM", f"{name}Backbone")


_CAUSAL = (
    *("Bloom", "Falcon", "GPT2", "GPTNeoX", "Gemma", "GptOss", "Llama", "Llama3", "Mistral", "Mixtral"),
    *("OPT", "Phi3", "Qwen", "Qwen3", "QwenMoe", "SmolLM3"),
)
_OTHERS = (
    # Text only: plain KerasHub cannot open a file of its vision encoder once that is quantized.
    Family("Gemma3CausalLM", "Gemma3Backbone", of_backbone={"vision_encoder": None}),
    Family("BertMaskedLM", "BertBackbone"),
    Family("RobertaTextClassifier", "RobertaBackbone", {"num_classes": 3, "dropout": 0.0, "hidden_dim": 16}),
    Family("ViTImageClassifier", "ViTBackbone", {"num_classes": 3}),
    Family("BartSeq2SeqLM", "BartBackbone"),
    Family("T5Seq2SeqLM", "T5Backbone"),
)
#: By name: that of the model's family, or of its class.
FAMILIES: Mapping[str, Family] = {name: _causal(name) for name in _CAUSAL} | {each.task: each for each in _OTHERS}

#: The layers that get adapters, of families none of whose layers has a name of KerasHub's default.
ADAPTED: Mapping[str, tuple[str, ...]] = {
    "GPTNeoX": ("query_key_value",),
    "SmolLM3": ("q_proj", "v_proj"),
    "T5Seq2SeqLM": ("query_projector", "value_projector"),
}
#: Their routers add a loss that balances experts and is no mean over rows.
BALANCED = ("Mixtral", "QwenMoe")


def build(name: str, way: str) -> Any:
    """Builds a task, and adapts it; weights are the same on every call, those of new adapters random.

    Args:
        name: a key of `FAMILIES`.
        way: one of `WAYS`.
    """
    family = FAMILIES[name]
    backbone = backbones.build(family.backbone, **family.of_backbone)
    return adapted(class_of(name)(backbone=backbone, preprocessor=None, **family.arguments), way, ADAPTED.get(name))


def class_of(name: str) -> Any:
    """Returns KerasHub's class of a task."""
    import keras_hub

    return getattr(keras_hub.models, FAMILIES[name].task)


def adapted(task: Any, way: str, names: Sequence[str] | None = None) -> Any:
    """Quantizes a task and enables LoRA in its backbone, as `way` says, in the order of KerasHub's guides.

    Args:
        task: not yet adapted.
        way: one of `WAYS`.
        names: of the layers that get adapters; KerasHub's default if left out.
    """
    if way == "QLoRA":
        # Keras collects garbage after each layer: a second for each in a process that has many objects.
        gc.freeze()
        try:
            task.quantize("int8")
        finally:
            gc.unfreeze()
    if way != "full":
        keras.utils.set_random_seed(11)
        task.backbone.enable_lora(RANK, names)
        generator = np.random.default_rng(1)
        for weight in task.weights:
            # Not zero, so that both adapters of a pair matter from the first step.
            if weight.name == "lora_kernel_b":
                weight.assign(generator.normal(scale=0.1, size=weight.shape))
    return task


def compile_task(task: Any, **arguments: Any) -> None:
    """Compiles a task with Adam, the loss and metrics that KerasHub chooses, and the given sampler, if any."""
    # A bias of keys has a gradient of zero but for rounding, which Adam would magnify.
    task.compile(keras.optimizers.Adam(1e-2, epsilon=1e-3), jit_compile=False, **arguments)


def data_of(task: Any) -> tuple[Any, Any, Any]:
    """Returns inputs, targets and sample weights of `ROWS` rows; the weights leave out padding."""
    inputs = backbones.inputs_of(task, ROWS)
    generator = np.random.default_rng(5)
    *positions, classes = task(inputs).shape
    targets = generator.integers(0, classes, tuple(positions))
    weights = generator.uniform(0.5, 1.5, tuple(positions)).astype("float32")
    mask = next((value for name, value in _named(inputs) if name in ("padding_mask", "decoder_padding_mask")), None)
    if mask is not None and mask.shape == weights.shape:
        weights = weights * mask.astype("float32")
    return inputs, targets, weights


def prompts_of(task: Any) -> Any:
    """Returns three prompts of different lengths, padded, whose number no number of replicas divides."""
    inputs = backbones.inputs_of(task, 3, seed=9)
    name = "decoder_padding_mask" if "decoder_padding_mask" in inputs else "padding_mask"
    length = inputs[name].shape[1]
    inputs[name] = (np.arange(length) < np.array([[2], [4], [3]])).astype(inputs[name].dtype)
    tokens = name.replace("padding_mask", "token_ids")
    inputs[tokens] = inputs[tokens] * inputs[name]
    return inputs


def _named(inputs: Any) -> list[tuple[str, Any]]:
    return list(inputs.items()) if isinstance(inputs, dict) else []
