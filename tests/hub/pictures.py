"""The arguments of the image backbones whose constructors take lists, with one entry for each stage."""

from typing import Any

RESNET: dict[str, Any] = {
    # The first stage needs 64 filters, because it adds its input.
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [3],
    "stackwise_num_filters": [64, 16],
    "stackwise_num_blocks": [1, 1],
    "stackwise_num_strides": [1, 2],
    "block_type": "basic_block",
}

MIT: dict[str, Any] = {
    "layerwise_depths": [1, 1],
    "hidden_dims": [16, 32],
    "num_layers": 2,
    "layerwise_num_heads": [4, 4],
    "layerwise_sr_ratios": [4, 2],
    "max_drop_path_rate": 0.0,
    "layerwise_patch_sizes": [7, 3],
    "layerwise_strides": [4, 2],
}

HGNETV2: dict[str, Any] = {
    "stem_channels": [3, 8, 8],
    # For each stage: input, inner and output channels, blocks, layers in a block, and the size of kernels.
    "stackwise_stage_filters": [[8, 8, 16, 1, 1, 3], [16, 8, 32, 1, 1, 3]],
    "apply_downsample": [False, True],
    "use_lightweight_conv_block": [False, False],
    "depths": [1, 1],
    "hidden_sizes": [16, 32],
    "embedding_size": 8,
    "use_learnable_affine_block": True,
    "hidden_act": "relu",
    "out_features": ["stage1", "stage2"],
}


def _one_block_a_stage(values: dict[str, list[Any]]) -> dict[str, list[list[Any]]]:
    return {name: [[value] for value in stages] for name, stages in values.items()}


ARGUMENTS: dict[str, dict[str, Any]] = {
    "CSPNetBackbone": {
        "stem_filters": 8,
        "stem_kernel_size": 3,
        "stem_strides": 2,
        "stackwise_depth": [1, 1],
        "stackwise_strides": 2,
        "stackwise_num_filters": [16, 32],
        "block_type": "dark_block",
        "stage_type": "csp",
        "stem_padding": "same",
        "down_growth": True,
        "bottle_ratio": (0.5, 1.0),
        "block_ratio": (1.0, 0.5),
        "expand_ratio": (2.0, 1.0),
    },
    "DenseNetBackbone": {"stackwise_num_repeats": [1, 1], "growth_rate": 8},
    "EfficientNetBackbone": {
        "stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0],
        "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [1, 1],
        "stackwise_input_filters": [8, 8],
        "stackwise_output_filters": [8, 16],
        "stackwise_expansion_ratios": [2, 2],
        "stackwise_squeeze_and_excite_ratios": [0.0, 0.25],
        "stackwise_strides": [2, 2],
        "stackwise_block_types": ["fused", "unfused"],
        "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False],
        "input_shape": (32, 32, 3),
        "num_features": 32,
    },
    "HGNetV2Backbone": HGNETV2,
    "MiTBackbone": MIT,
    "MobileNetBackbone": {
        **_one_block_a_stage(
            {
                "stackwise_expansion": [16, 32],
                "stackwise_num_filters": [8, 16],
                "stackwise_kernel_size": [3, 3],
                "stackwise_num_strides": [2, 1],
                "stackwise_se_ratio": [None, 0.25],
                "stackwise_padding": [1, 1],
            }
        ),
        "stackwise_num_blocks": [1, 1],
        # One more entry than stages: the last one is for the convolution after them.
        "stackwise_activation": [["relu"], ["hard_swish"], ["hard_swish"]],
        "output_num_filters": 32,
        "input_num_filters": 8,
        "depthwise_filters": 8,
        "depthwise_stride": 2,
        "depthwise_residual": False,
        "squeeze_and_excite": 0.5,
        "last_layer_filter": 32,
    },
    "MobileNetV5Backbone": {
        **_one_block_a_stage(
            {
                "stackwise_block_types": ["er", "uir"],
                "stackwise_num_filters": [8, 16],
                "stackwise_strides": [2, 2],
                "stackwise_act_layers": ["relu", "relu"],
                "stackwise_exp_ratios": [2.0, 2.0],
                "stackwise_se_ratios": [0.0, 0.0],
                "stackwise_dw_kernel_sizes": [0, 3],
                "stackwise_dw_start_kernel_sizes": [0, 0],
                "stackwise_dw_end_kernel_sizes": [0, 0],
                "stackwise_exp_kernel_sizes": [3, 0],
                "stackwise_pw_kernel_sizes": [1, 0],
                "stackwise_num_heads": [0, 0],
                "stackwise_key_dims": [0, 0],
                "stackwise_value_dims": [0, 0],
                "stackwise_kv_strides": [0, 0],
                "stackwise_use_cpe": [False, False],
            }
        ),
        "stackwise_num_blocks": [1, 1],
        "stem_size": 8,
        "num_features": 16,
        "use_msfa": False,
    },
    "ResNetBackbone": RESNET,
    "SwinTransformerBackbone": {"embed_dim": 16, "depths": (1, 1), "num_heads": (4, 4), "window_size": 4},
    "VGGBackbone": {"stackwise_num_repeats": [1, 1], "stackwise_num_filters": [8, 16]},
    "XceptionBackbone": {"stackwise_conv_filters": [[8, 16], [16, 16]], "stackwise_pooling": [True, False]},
}
