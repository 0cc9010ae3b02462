"""Prints the signed errors of the planner's formulas on published runs: ``make validate-plan``."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.planning import gpu_of, step_time
from strategies.planning.step_bytes import activation_bytes_of_layers
from strategies.text_table import text_table
from tests.strategies.planning.published import ACTIVATIONS, LATER_TIMES, TIMES, Row
from tests.strategies.planning.test_step_bytes import GIB, layouts_of


def error_of(row: Row) -> float:
    """Returns the predicted time divided by the published one, less 1."""
    return step_time(row.model, row.layout, row.batch_size, gpu_of("A100")).total / row.seconds - 1


def main() -> None:
    """Prints tables of times, and one of activations."""
    _print_times("arXiv:2104.04473, table 1", TIMES)
    _print_times("arXiv:2205.05198, table 5", LATER_TIMES)
    lines: list[tuple[str, ...]] = [
        ("parameters", "tensor parallel GiB", "error", "sequence parallel, selective GiB", "error")
    ]
    for case in ACTIVATIONS:
        cells = []
        for layout, expected in layouts_of(case):
            found = activation_bytes_of_layers(case[0], layout) / GIB
            cells += [f"{found:.2f}", f"{found / expected - 1:+.2%}"]
        lines.append((f"{case[0].num_parameters / 1e9:.1f}e9", *cells))
    print("Activations of the blocks on the first stage, arXiv:2205.05198, figure 1:")
    print("\n".join(text_table(lines)))


def _print_times(source: str, published: Sequence[Row]) -> None:
    rows = [("parameters", "GPUs", "data x pipe x tensor", "recompute", "published s", "predicted s", "error", "")]
    for row in published:
        error, layout = error_of(row), row.layout
        mesh = f"{layout.num_data} x {layout.num_stages} x {layout.num_tensor}"
        seconds = (f"{row.seconds:.2f}", f"{row.seconds * (1 + error):.2f}", f"{error:+.1%}")
        size = f"{row.model.num_parameters / 1e9:.1f}e9"
        rows.append((size, str(layout.num_devices), mesh, str(layout.recompute), *seconds, "fitted" * row.is_fitted))
    print(f"Time of a step, {source}:")
    print("\n".join(text_table(rows)))
    errors = [abs(error_of(row)) for row in published]
    print(f"mean {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}\n")


if __name__ == "__main__":
    main()
