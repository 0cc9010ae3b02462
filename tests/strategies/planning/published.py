"""Published times and bytes of training, as numbers.

`TIMES`: table 1 of Narayanan et al. (arXiv:2104.04473), on A100s with 80 GB: everything is computed again in the
backward pass. `LATER_TIMES`: table 5 of Korthikanti et al. (arXiv:2205.05198), with everything computed again, and with
sequence parallelism and attention scores computed again; all-reduces of backward passes run beside gradients of
weights. `ACTIVATIONS` and `STATES`: its figure 1 and section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.planning import Layout, Transformer
from strategies.planning.transformer import Recompute


@dataclass(frozen=True)
class Row:
    """A published run.

    Attributes:
        model: the model.
        layout: its mesh.
        batch_size: rows of the global batch.
        seconds: of a step.
        is_fitted: True if the constants were fitted to this row.
    """

    model: Transformer
    layout: Layout
    batch_size: int
    seconds: float
    is_fitted: bool = False


def _row(
    heads: int,
    hidden: int,
    layers: int,
    t: int,
    p: int,
    gpus: int,
    batch: int,
    b: int,
    chunks: int,
    tflops: float,
    *,
    fitted: bool = False,
) -> Row:
    layout = Layout(gpus // (t * p), p, t, b, chunks, "full", gradient_bytes=2)
    model = Transformer(layers, hidden, heads)
    # The table has operations per second of a GPU, in 1e12.
    return Row(model, layout, batch, model.flops(batch, recompute="full") / (gpus * tflops * 1e12), fitted)


TIMES = [
    _row(24, 2304, 24, 1, 1, 32, 512, 16, 1, 137, fitted=True),
    _row(32, 3072, 30, 2, 1, 64, 512, 16, 1, 138, fitted=True),
    _row(32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    _row(48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135),
    _row(64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138),
    _row(80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140),
    _row(96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    _row(128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155),
    _row(128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163),
    _row(160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163, fitted=True),
]

#: Models of 22, 175, 530 and 1,000 billion parameters: model, stages, rows of a micro-batch, chunks; then GiB of the
#: blocks' activations with tensor parallelism alone, and with sequence parallelism and selective recomputation.
ACTIVATIONS = [
    (Transformer(48, 6144, 64), 1, 4, 1, 59.25, 9.56),
    (Transformer(96, 12288, 96), 8, 1, 3, 66.84, 12.35),
    (Transformer(105, 20480, 128), 35, 1, 3, 114.02, 23.08),
    (Transformer(128, 25600, 160), 64, 1, 1, 131.25, 26.56),
]
#: GiB of the state of the same models' blocks.
STATES = [45.56, 45.56, 31.64, 32.96]


#: For the same models: rows of a batch, and seconds with everything computed again, and with the paper's methods.
_SECONDS = [(4, 1.42, 1.10), (64, 18.13, 13.75), (280, 49.05, 37.83), (512, 94.42, 71.49)]


def _ways(full: float, selective: float) -> list[tuple[Recompute, bool, float]]:
    return [("full", False, full), ("selective", True, selective)]


LATER_TIMES = [
    Row(model, Layout(1, stages, 8, rows, chunks, recompute, parallel, overlap_tensor=True), batch, seconds)
    for (model, stages, rows, chunks, *_), (batch, full, selective) in zip(ACTIVATIONS, _SECONDS, strict=True)
    for recompute, parallel, seconds in _ways(full, selective)
]
