"""Parity of whole programs, as practitioners publish them."""

from __future__ import annotations

from tests.programs import (
    dcgan,
    diffusion,
    endpoint_layer,
    mini_gpt,
    seq2seq,
    siamese,
    text_classification,
    unet,
    vae,
    vision_transformer,
    wgan_gp,
    wide_and_deep,
)

_FUNCTIONAL = (vision_transformer, mini_gpt, text_classification, wide_and_deep, seq2seq, unet, endpoint_layer)
_OWN_STEPS = (vae, dcgan, wgan_gp, diffusion, siamese)

FUNCTIONAL = {program.CASE.name: program.make for program in _FUNCTIONAL}
WITH_BATCH_NORMALIZATION = {program.CASE.name for program in (wide_and_deep, unet)}
CASES = [program.CASE for program in (*_FUNCTIONAL, *_OWN_STEPS)]
