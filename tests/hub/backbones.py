"""Every backbone of KerasHub as a small model with random weights, with its inputs and targets."""

import inspect
from typing import Any

from tests.hub import composed, pictures
from tests.hub.inputs import inputs_of, losses_of, targets_of

__all__ = ["CANNOT", "build", "inputs_of", "losses_of", "names", "targets_of"]

CANNOT: dict[str, str] = {
    "BASNetBackbone": "A ResNet begins 64 wide, and its middle must be eight times that: 48 million weights.",
    "StableDiffusion3Backbone": "Its scheduler gives linspace the number of steps, an input, which cannot be traced.",
}

# Set wherever a constructor has them: the defaults are random in training, or large.
ALWAYS: dict[str, Any] = {
    "attention_dropout": 0.0,
    "attention_dropout_rate": 0.0,
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "drop_path": 0.0,
    "drop_path_rate": 0.0,
    "feedforward_dropout_rate": 0.0,
    "image_shape": (32, 32, 3),
    "max_drop_path_rate": 0.0,
    "max_decoder_sequence_length": 8,
    "max_encoder_sequence_length": 8,
    "max_position_embeddings": 8,
    "max_sequence_length": 8,
}

# Set where a constructor has them.
SIZES: dict[str, Any] = {
    "embedding_dim": 32,
    "head_dim": 8,
    "head_size": 8,
    "hidden_dim": 32,
    "hidden_size": 32,
    "intermediate_dim": 64,
    "mlp_dim": 64,
    "moe_intermediate_dim": 32,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_heads": 4,
    "num_key_value_heads": 4,
    "num_layers": 2,
    "num_query_heads": 4,
    "patch_size": 8,
    "shared_expert_intermediate_dim": 32,
    "shared_expert_intermediate_size": 32,
    "top_k": 2,
    "vocab_size": 48,
    "vocabulary_size": 48,
}

ENCODER_AND_DECODER: dict[str, Any] = {
    f"{side}_{size}": value
    for side in ("encoder", "decoder")
    for size, value in {
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }.items()
} | {"sliding_window": 4}

LINEAR_ATTENTION: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    # A quarter of a head's eight numbers leaves two, the minimum for a rotation.
    "partial_rotary_factor": 0.25,
}

# Arguments that a constructor needs besides, or instead of, the sizes above.
OWN: dict[str, dict[str, Any]] = {
    "DINOV2Backbone": {"position_embedding_shape": (32, 32, 3), "use_mask_token": False},
    "DINOV3Backbone": {"use_mask_token": False},
    "DebertaV3Backbone": {"bucket_size": 4},
    "EdRecBackbone": {"num_layers_enc": 2, "num_layers_dec": 2},
    "FluxBackbone": {
        "input_channels": 16,
        "mlp_ratio": 2.0,
        "depth": 1,
        "depth_single_blocks": 1,
        # The three parts add up to the size of a head.
        "axes_dim": [4, 2, 2],
        "theta": 10_000,
        "use_bias": True,
        "guidance_embed": True,
        "image_shape": (8, 16),
        "text_shape": (8, 16),
        "image_ids_shape": (8, 3),
        "text_ids_shape": (8, 3),
        "y_shape": (16,),
    },
    "Gemma3nBackbone": {
        "text_vocab_size": 48,
        "text_hidden_size": 32,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "intermediate_size": [64, 64],
        "hidden_activation": "gelu_approximate",
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "rope_theta": 10_000.0,
        "vocab_size_per_layer_input": 48,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2,
        "laurel_rank": 4,
    },
    "MixtralBackbone": {"router_jitter_noise": 0.0},
    "MoonshineBackbone": {
        "filter_dim": 32,
        "encoder_num_layers": 2,
        "decoder_num_layers": 2,
        "encoder_num_heads": 4,
        "decoder_num_heads": 4,
        "feedforward_expansion_factor": 2,
        "max_position_embeddings": 64,
    },
    "PaliGemmaBackbone": {
        "image_size": 16,
        "vit_patch_size": 8,
        "vit_num_heads": 4,
        "vit_hidden_dim": 32,
        "vit_num_layers": 2,
        "vit_intermediate_dim": 64,
    },
    # Text only: its vision encoder calls int() on image sizes, which are inputs, and so cannot be traced.
    "Qwen3_5Backbone": LINEAR_ATTENTION,
    "Qwen3_5MoeBackbone": LINEAR_ATTENTION,
    "RWKV7Backbone": {"gate_lora": 8, "mv_lora": 8, "aaa_lora": 8, "decay_lora": 8},
    "SmolLM3Backbone": {
        "attention_bias": False,
        "rope_layer_enabled_list": [True, False],
        "layer_types": ["attention", "attention"],
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 1.0,
    },
    "T5GemmaBackbone": ENCODER_AND_DECODER,
    "T5Gemma2Backbone": ENCODER_AND_DECODER,
    "VideoPrismBackbone": {
        "num_frames": 2,
        "num_spatial_layers": 1,
        "num_temporal_layers": 1,
        "num_auxiliary_layers": 0,
    },
    "ViTDetBackbone": {"global_attention_layer_indices": [1], "window_size": 2, "num_output_channels": 16},
    "WhisperBackbone": {"num_mels": 8},
    **pictures.ARGUMENTS,
}


def names() -> list[str]:
    """Returns the names of all backbones that KerasHub exports; each class once, by its own name."""
    import keras_hub

    models = keras_hub.models
    abstract = ("Backbone", "FeaturePyramidBackbone")
    return sorted(
        name
        for name, exported in vars(models).items()
        if name.endswith("Backbone")
        and name not in abstract
        and isinstance(exported, type)
        and issubclass(exported, models.Backbone)
        # Some classes are also exported by the name of an older or newer family.
        and name == exported.__name__
    )


def build(name: str, **own: Any) -> Any:
    """Builds the named backbone, without dropout and with random weights, equal on every call.

    `own` replaces arguments of its constructor.
    """
    import keras
    import keras_hub

    keras.utils.set_random_seed(7)
    parts = composed.PARTS[name](make) if name in composed.PARTS else {}
    model = make(getattr(keras_hub.models, name), **{**OWN.get(name, {}), **parts, **own})
    for layer in model._flatten_layers():
        # Some constructors have no dropout argument.
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return model


def make(cls: Any, **own: Any) -> Any:
    """Calls a constructor with the sizes that it takes, and with its own arguments."""
    known = {}
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name in ALWAYS:
            known[name] = ALWAYS[name]
        elif name in SIZES and parameter.default is parameter.empty:
            known[name] = SIZES[name]
    return cls(**{**known, **own})
