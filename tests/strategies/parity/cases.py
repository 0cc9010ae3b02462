"""All parity cases, by section of the page and by name."""

from tests.strategies.parity import (
    cases_data,
    cases_global_batch,
    cases_gradients,
    cases_layers,
    cases_losses,
    cases_models,
    cases_optimizers,
    cases_programs,
    cases_quantized,
    cases_training,
)

SECTIONS = {
    "Data": cases_data.CASES,
    "Models and losses": cases_models.CASES,
    "Losses of one's own, and tables": cases_losses.CASES,
    "Gradients that a program changes": cases_gradients.CASES,
    "What a step computes from the batch": cases_global_batch.CASES,
    "Optimizers": cases_optimizers.CASES,
    "Metrics and training options": cases_training.CASES,
    "Layers": [*cases_layers.CASES, *cases_quantized.CASES],
    "Programs as they are published": cases_programs.CASES,
}
ALL = {case.name: case for cases in SECTIONS.values() for case in cases}
