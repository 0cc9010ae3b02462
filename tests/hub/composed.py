"""The arguments of backbones made of other models, each as a function of one that calls a constructor."""

from collections.abc import Callable
from typing import Any

from tests.hub.pictures import HGNETV2, MIT, RESNET

Make = Callable[..., Any]


def _hub() -> Any:
    import keras_hub

    return keras_hub


def _resnet(make: Make, stages: int, **own: Any) -> Any:
    each = {
        "stackwise_num_filters": [64] + [8] * (stages - 1),
        "stackwise_num_blocks": [1] * stages,
        "stackwise_num_strides": [1] + [2] * (stages - 1),
    }
    return make(_hub().models.ResNetBackbone, **{**RESNET, **each, **own})


def _basnet(make: Make) -> dict[str, Any]:
    # The whole model sets the size of images; its filters feed the encoder's first stage, which has 64.
    encoder = _resnet(make, 4, image_shape=(None, None, 3))
    return {"image_encoder": encoder, "num_classes": 1, "projection_filters": 64}


def _blip2(make: Make) -> dict[str, Any]:
    models = _hub().models
    queries = 4
    return {
        "vision_encoder": make(
            models.BLIP2VisionEncoder,
            image_size=32,
            use_patch_bias=True,
            use_class_token=True,
            use_mha_bias=True,
            use_mlp_bias=True,
            layer_norm_epsilon=1e-6,
            initializer_range=0.02,
        ),
        "qformer": make(
            models.BLIP2QFormer,
            num_query_tokens=queries,
            vision_dim=32,
            cross_attention_frequency=2,
            layer_norm_epsilon=1e-6,
        ),
        "language_model": make(
            models.BLIP2CustomOPT, num_query_tokens=queries, qformer_hidden_dim=32, max_sequence_length=12
        ),
    }


def _clip(make: Make, kind: str) -> dict[str, Any]:
    models = _hub().models
    return {
        "vision_encoder": make(getattr(models, f"{kind}VisionEncoder"), name="vision_encoder"),
        "text_encoder": make(getattr(models, f"{kind}TextEncoder"), name="text_encoder"),
    }


def _deeplab(make: Make) -> dict[str, Any]:
    return {
        "image_encoder": _resnet(make, 3),
        "low_level_feature_key": "P2",
        "spatial_pyramid_pooling_key": "P4",
        "dilation_rates": [2],
        "upsampling_size": 4,
        "projection_filters": 8,
    }


def _depth_anything(make: Make) -> dict[str, Any]:
    return {
        "image_encoder": make(
            _hub().models.DINOV2Backbone,
            position_embedding_shape=(32, 32, 3),
            use_mask_token=False,
            apply_layernorm=True,
            name="image_encoder",
        ),
        "reassemble_factors": [2, 1],
        "neck_hidden_dims": [8, 16],
        "fusion_hidden_dim": 16,
        "head_hidden_dim": 8,
        "head_in_index": -1,
        "feature_keys": ["stage1", "stage2"],
    }


def _dfine(make: Make) -> dict[str, Any]:
    return {
        "backbone": make(_hub().models.HGNetV2Backbone, **HGNETV2),
        "decoder_in_channels": [16, 16],
        "encoder_hidden_dim": 16,
        "num_denoising": 0,
        "num_labels": 4,
        "hidden_dim": 16,
        "learn_initial_query": False,
        "num_queries": 8,
        "anchor_image_size": (32, 32),
        "feat_strides": [4, 8],
        "num_feature_levels": 2,
        "encoder_in_channels": [16, 32],
        "encode_proj_layers": [1],
        "encoder_ffn_dim": 32,
        "num_encoder_layers": 1,
        "hidden_expansion": 0.5,
        "depth_multiplier": 0.5,
        "eval_idx": -1,
        "num_decoder_layers": 1,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 32,
        "decoder_n_points": [2, 2],
        "lqe_hidden_dim": 16,
        "num_lqe_layers": 1,
        "out_features": ["stage1", "stage2"],
        "seed": 0,
    }


def _gemma3_vision(make: Make) -> dict[str, Any]:
    # Four by four patches, pooled two by two: an image becomes four tokens.
    encoder = make(_hub().models.Gemma3VisionEncoder, image_size=16, patch_size=4, pool_size=2, output_dim=32)
    return {"vision_encoder": encoder}


def _gemma4(make: Make) -> dict[str, Any]:
    encoder = make(
        _hub().models.Gemma4VisionEncoder,
        image_size=16,
        patch_size=4,
        pool_size=2,
        output_dim=32,
        num_key_value_heads=4,
    )
    return {"vision_encoder": encoder, "image_size": 16, "sliding_window_size": 4}


def _parseq(make: Make) -> dict[str, Any]:
    return {
        "image_encoder": make(_hub().models.ViTBackbone, use_class_token=False, name="image_encoder"),
        "max_label_length": 8,
        "decoder_hidden_dim": 32,
        "num_decoder_layers": 1,
        "num_decoder_heads": 4,
        "decoder_mlp_dim": 64,
    }


def _retinanet(make: Make) -> dict[str, Any]:
    return {"image_encoder": _resnet(make, 4), "min_level": 3, "max_level": 5, "use_p5": True}


def _sam(make: Make) -> dict[str, Any]:
    hub = _hub()
    return {
        "image_encoder": make(
            hub.models.ViTDetBackbone, global_attention_layer_indices=[1], window_size=2, num_output_channels=16
        ),
        "prompt_encoder": make(
            hub.layers.SAMPromptEncoder,
            hidden_size=16,
            image_embedding_size=(4, 4),
            input_image_size=(32, 32),
            mask_in_channels=8,
        ),
        "mask_decoder": make(
            hub.layers.SAMMaskDecoder, hidden_size=16, embedding_dim=16, iou_head_depth=2, iou_head_hidden_dim=16
        ),
    }


def _sam3(make: Make) -> dict[str, Any]:
    layers = _hub().layers
    return {
        "vision_encoder": make(
            layers.SAM3VisionEncoder,
            fpn_hidden_dim=32,
            fpn_scale_factors=[2.0, 1.0, 0.5],
            pretrain_image_shape=(32, 32, 3),
            window_size=2,
            global_attn_indexes=[1],
        ),
        "text_encoder": make(layers.SAM3TextEncoder),
        # No layers: they use the mask of (rows, boxes) as one of (boxes, boxes), which fits only for equal numbers.
        "geometry_encoder": make(layers.SAM3GeometryEncoder, num_layers=0, roi_size=4),
        "detr_encoder": make(layers.SAM3DetrEncoder, num_layers=1),
        "detr_decoder": make(layers.SAM3DetrDecoder, num_layers=1, num_queries=4),
        "mask_decoder": make(layers.SAM3MaskDecoder, num_upsampling_stages=2),
    }


def _segformer(make: Make) -> dict[str, Any]:
    return {"image_encoder": make(_hub().models.MiTBackbone, **MIT), "projection_filters": 16}


def _stable_diffusion(make: Make) -> dict[str, Any]:
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    text = _hub().models.CLIPTextEncoder
    return {
        # Filters are normalized in 32 groups; "mode" is deterministic.
        "vae": VAEBackbone([32] * 4, [1] * 4, [32] * 4, [1] * 4, sampler_method="mode", name="vae"),
        "clip_l": make(text, num_layers=2, intermediate_output_index=-2, name="clip_l"),
        "clip_g": make(text, num_layers=2, intermediate_output_index=-2, name="clip_g"),
        "mmdit_patch_size": 2,
        "mmdit_hidden_dim": 32,
        "mmdit_num_layers": 2,
        "mmdit_num_heads": 4,
        "mmdit_position_size": 8,
        "mmdit_qk_norm": None,
        "mmdit_dual_attention_indices": None,
    }


PARTS: dict[str, Callable[[Make], dict[str, Any]]] = {
    "BASNetBackbone": _basnet,
    "BLIP2Backbone": _blip2,
    "CLIPBackbone": lambda make: {**_clip(make, "CLIP"), "projection_dim": 32},
    "DFineBackbone": _dfine,
    "DeepLabV3Backbone": _deeplab,
    "DepthAnythingBackbone": _depth_anything,
    "Gemma3Backbone": lambda make: {**_gemma3_vision(make), "image_size": 16},
    "Gemma4Backbone": _gemma4,
    "MetaCLIP2Backbone": lambda make: {**_clip(make, "MetaCLIP2"), "projection_dim": 32},
    "PARSeqBackbone": _parseq,
    "RetinaNetBackbone": _retinanet,
    "SAM3PromptableConceptBackbone": _sam3,
    "SAMBackbone": _sam,
    "SegFormerBackbone": _segformer,
    "SigLIPBackbone": lambda make: _clip(make, "SigLIP"),
    "StableDiffusion3Backbone": _stable_diffusion,
    # The token after an image; it must be in the vocabulary, so that it can occur.
    "T5Gemma2Backbone": lambda make: {**_gemma3_vision(make), "eoi_token_index": 7},
}
