"""Writes presets: small models with random weights, in KerasHub's own format and in the layout of model hubs."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np

TEXT = (Path(__file__).parents[3] / "README.md").read_text()
_OF_LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}


def gpt2(**changed: Any) -> Any:
    """Returns a GPT-2 of two layers, with learnt positions and tied embeddings."""
    keras.utils.set_random_seed(3)
    sizes = {"vocabulary_size": 320, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 128}
    return keras_hub.models.GPT2Backbone(**{**sizes, "max_sequence_length": 16, "dropout": 0.0, **changed})


def llama3(**changed: Any) -> Any:
    """Returns a Llama of two layers, with grouped queries and an output matrix of its own."""
    keras.utils.set_random_seed(4)
    sizes = {"vocabulary_size": 320, "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2}
    return keras_hub.models.Llama3Backbone(**{**sizes, "hidden_dim": 32, "intermediate_dim": 64, **changed})


def tokenizer(text: str = TEXT, num_merges: int = 40) -> tuple[dict[str, int], list[str]]:
    """Returns a byte-level vocabulary and its merges, trained on a text."""
    letters = _letters()
    words = Counter(tuple(letters[byte] for byte in f" {word}".encode()) for word in text.split())
    merges: list[str] = []
    for _ in range(num_merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(" ".join(best))
        words = Counter({_merged(word, best): count for word, count in words.items()})
    tokens = ["<|endoftext|>", *letters, *(merge.replace(" ", "") for merge in merges)]
    return {token: index for index, token in enumerate(tokens)}, merges


def _letters() -> list[str]:
    """Returns the printable letter with which GPT-2's vocabularies write each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _merged(word: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    made: list[str] = []
    for letter in word:
        if made and (made[-1], letter) == pair:
            made[-1] += letter
        else:
            made.append(letter)
    return tuple(made)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a file in the format of safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[str(tensor.dtype)], "shape": tensor.shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def write_in_hub_layout(backbone: Any, folder: Path, num_files: int = 1) -> dict[str, np.ndarray]:
    """Writes a GPT-2 or a Llama in the layout of model hubs, with tokenizer files; returns the tensors by name.

    Args:
        backbone: of `gpt2` or `llama3`.
        folder: is made.
        num_files: the number of files over which the tensors are distributed; several have an index.
    """
    folder.mkdir(parents=True)
    vocabulary, merges = tokenizer()
    is_gpt2 = hasattr(backbone, "position_embedding")
    config, found = _gpt2(backbone) if is_gpt2 else _llama3(backbone)
    if is_gpt2:
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    else:
        special = [{"content": token, "id": len(vocabulary) + index} for index, token in enumerate(_OF_LLAMA)]
        model = {"vocab": vocabulary, "merges": merges}
        (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": special}))
        tokens = {"bos_token": _OF_LLAMA[0], "eos_token": _OF_LLAMA[1]}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: np.array(value) for name, value in found.items()}
    write_tensors(folder, tensors, num_files)
    return tensors


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray], num_files: int = 1) -> None:
    """Writes the tensors of a folder in the layout of model hubs."""
    if num_files == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = [f"model-{index + 1:05}-of-{num_files:05}.safetensors" for index in range(num_files)]
    places = {name: names[index % num_files] for index, name in enumerate(tensors)}
    for each in names:
        write_safetensors(folder / each, {name: tensors[name] for name, place in places.items() if place == each})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _gpt2(backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": backbone.vocabulary_size,
        "n_layer": backbone.num_layers,
        "n_head": backbone.num_heads,
        "n_embd": backbone.hidden_dim,
        "n_positions": backbone.max_sequence_length,
        "resid_pdrop": 0.0,
    }
    found = {
        "transformer.wte.weight": backbone.token_embedding.embeddings,
        "transformer.wpe.weight": backbone.position_embedding.position_embeddings,
        "transformer.ln_f.weight": backbone.layer_norm.gamma,
        "transformer.ln_f.bias": backbone.layer_norm.beta,
    }
    width = backbone.hidden_dim
    for index, layer in enumerate(backbone.transformer_layers):
        prefix, attention = f"transformer.h.{index}", layer._self_attention_layer
        inputs = [attention.query_dense, attention.key_dense, attention.value_dense]
        kernels = [np.reshape(each.kernel, (width, width)) for each in inputs]
        found |= {
            f"{prefix}.attn.c_attn.weight": np.concatenate(kernels, 1),
            f"{prefix}.attn.c_attn.bias": np.concatenate([np.reshape(each.bias, -1) for each in inputs]),
            f"{prefix}.attn.c_proj.weight": np.reshape(attention.output_dense.kernel, (width, width)),
            f"{prefix}.attn.c_proj.bias": attention.output_dense.bias,
            f"{prefix}.ln_1.weight": layer._self_attention_layer_norm.gamma,
            f"{prefix}.ln_1.bias": layer._self_attention_layer_norm.beta,
            f"{prefix}.ln_2.weight": layer._feedforward_layer_norm.gamma,
            f"{prefix}.ln_2.bias": layer._feedforward_layer_norm.beta,
            f"{prefix}.mlp.c_fc.weight": layer._feedforward_intermediate_dense.kernel,
            f"{prefix}.mlp.c_fc.bias": layer._feedforward_intermediate_dense.bias,
            f"{prefix}.mlp.c_proj.weight": layer._feedforward_output_dense.kernel,
            f"{prefix}.mlp.c_proj.bias": layer._feedforward_output_dense.bias,
            # A constant mask, which many such files have and no weight takes.
            f"{prefix}.attn.bias": np.ones((1, 1, 4, 4), "float32"),
        }
    return config, found


def _llama3(backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": backbone.vocabulary_size,
        "num_hidden_layers": backbone.num_layers,
        "num_attention_heads": backbone.num_query_heads,
        "num_key_value_heads": backbone.num_key_value_heads,
        "hidden_size": backbone.hidden_dim,
        "intermediate_size": backbone.intermediate_dim,
        "tie_word_embeddings": False,
        "rope_theta": backbone.rope_max_wavelength,
    }
    embedding = backbone.get_layer("token_embedding")
    width = backbone.hidden_dim
    found = {
        "model.embed_tokens.weight": embedding.embeddings,
        "lm_head.weight": np.transpose(embedding.reverse_embeddings),
        "model.norm.weight": backbone.get_layer("sequence_output_layernorm").scale,
    }
    for index in range(backbone.num_layers):
        layer, prefix = backbone.get_layer(f"transformer_layer_{index}"), f"model.layers.{index}"
        attention = layer._self_attention_layer
        for name in ("query", "key", "value"):
            kernel = np.reshape(getattr(attention, f"_{name}_dense").kernel, (width, -1))
            found[f"{prefix}.self_attn.{name[0]}_proj.weight"] = np.transpose(kernel)
        found[f"{prefix}.self_attn.o_proj.weight"] = np.reshape(attention._output_dense.kernel, (-1, width)).T
        for theirs, own in (("gate", "gate"), ("up", "intermediate"), ("down", "output")):
            kernel = getattr(layer, f"_feedforward_{own}_dense").kernel
            found[f"{prefix}.mlp.{theirs}_proj.weight"] = np.transpose(kernel)
        found[f"{prefix}.input_layernorm.weight"] = layer._self_attention_layernorm.scale
        found[f"{prefix}.post_attention_layernorm.weight"] = layer._feedforward_layernorm.scale
    return config, found
