"""Inputs that fit any of the small backbones, derived from names and shapes, and targets for all outputs."""

from typing import Any

import numpy as np

TOKENS = 8
VOCABULARY = 48
# The token at which MetaCLIP 2 reads a text; without it, it reads the first token, which sees no other.
END = 2
# The positions of the tokens of the one image in a row; an index of zero would mean no token.
OF_THE_IMAGE = (1, 2, 3, 4)
# Samples of sound in a row; three convolutions with strides of 64, 3 and 2 turn them into four frames.
SAMPLES = 2048

# SAM's grid of positions is shared by all rows; Moonshine's mask is boolean, although declared as float.
NOT_TRAINED = ("prompt_dense_positional_embeddings", "encoder_attention_mask")


def inputs_of(model: Any, rows: int = 8, seed: int = 3) -> Any:
    """Returns rows of inputs in the model's input structure."""
    generator = np.random.default_rng(seed)

    def one(name: str, tensor: Any) -> Any:
        return _array(name, tuple(tensor.shape[1:]), str(tensor.dtype), rows, generator)

    if isinstance(model.input, dict):
        inputs = {name: one(name, tensor) for name, tensor in model.input.items()}
        if "encoder_input_values" in inputs:
            inputs["encoder_padding_mask"] = _mask((rows, SAMPLES), generator)
        return inputs
    if isinstance(model.input, list | tuple):
        return [one(tensor.name, tensor) for tensor in model.input]
    return one(model.input.name, model.input)


def _array(name: str, shape: tuple[int | None, ...], dtype: str, rows: int, generator: Any) -> Any:
    special = _special(name, shape, rows, generator)
    if special is not None:
        return special.astype(dtype)
    known = (rows, *(TOKENS if size is None else size for size in shape))
    if "mask" in name:
        return _mask(known, generator).astype(dtype)
    if "int" in dtype:
        below = 2 if "segment" in name or "label" in name else VOCABULARY
        drawn = generator.integers(0, below, known)
        if name.endswith("token_ids"):
            drawn[..., -1] = END
        return drawn.astype(dtype)
    if "image" in name or "pixel" in name:
        return generator.uniform(size=known).astype(dtype)
    return generator.normal(size=known).astype(dtype)


def _mask(shape: tuple[int, ...], generator: Any) -> Any:
    """Returns ones, with zeros at the end of every second row, after the tokens of an image."""
    length = shape[-1]
    kept = np.full(shape[0], length)
    kept[1::2] = generator.integers(5 * length // 8, length, len(kept[1::2]))
    return np.arange(length) < kept.reshape(-1, *[1] * (len(shape) - 1))


def _special(name: str, shape: tuple[int | None, ...], rows: int, generator: Any) -> Any:
    """Returns inputs whose validity cannot be derived from name and shape, or None."""
    if name == "vision_indices":
        return np.tile(OF_THE_IMAGE, (rows, 1))
    if name == "vision_mask":
        return np.tile(np.isin(np.arange(TOKENS), OF_THE_IMAGE), (rows, 1))
    if name == "position_ids":
        return np.tile(np.arange(TOKENS), (rows, 1))
    # Gemma 4: one image of four by four patches, each of four by four pixels.
    if name == "pixel_values" and shape == (None, None, None):
        return generator.uniform(size=(rows, 1, 16, 48))
    if name == "pixel_position_ids":
        grid = np.stack(np.meshgrid(np.arange(4), np.arange(4)), axis=-1).reshape(1, 1, 16, 2)
        return np.tile(grid, (rows, 1, 1, 1))
    if name == "images" and len(shape) == 4 and shape[0] is None:
        return generator.uniform(size=(rows, 1, *shape[1:]))
    # Moonshine's sound.
    if name == "encoder_input_values":
        return generator.normal(size=(rows, SAMPLES, 1))
    # The prompts of SAM: a point, a box and a mask in an image of 32 by 32.
    if name == "points":
        return generator.uniform(0, 32, (rows, 1, 2))
    if name == "labels":
        return generator.integers(0, 2, (rows, 1))
    if name == "boxes" and shape[1:] == (2, 2):
        return np.sort(generator.uniform(0, 32, (rows, 1, 2, 2)), axis=2)
    if name == "masks":
        return generator.normal(size=(rows, 1, 16, 16, 1))
    # SAM 3: one box in each row, with centre and size relative to the image.
    if name == "boxes":
        return generator.uniform(0.2, 0.5, (rows, 1, *shape[1:]))
    if name == "box_labels":
        return generator.integers(0, 2, (rows, 1))
    # Stable Diffusion reads these from the first row only.
    if name == "num_steps":
        return np.full(rows, 4)
    if name == "guidance_scale":
        return np.full(rows, 2.0)
    if name in ("timesteps", "guidance"):
        return generator.uniform(0, 1, (rows, *shape))
    return None


def targets_of(model: Any, inputs: Any, seed: int = 5) -> Any:
    """Returns normally distributed targets with the shapes and structure of the model's outputs for these inputs."""
    import keras

    generator = np.random.default_rng(seed)
    rows = len(keras.tree.flatten(inputs)[0])

    def one(output: Any) -> Any:
        shape = np.shape(output)
        # An output without a row dimension is not trained, and its target is ignored.
        return generator.normal(size=shape if shape[:1] == (rows,) else (rows, 1)).astype("float32")

    return keras.tree.map_structure(one, model.predict_on_batch(inputs))


def losses_of(model: Any) -> Any:
    """Returns the mean squared error: one for all outputs, or a structure where some cannot be trained."""
    outputs = model.output
    if not isinstance(outputs, dict) or not any(name in outputs for name in NOT_TRAINED):
        return "mse"
    return {name: None if name in NOT_TRAINED else "mse" for name in outputs}
