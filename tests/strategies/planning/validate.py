"""Prints the signed errors of the planner's formulas on published runs: ``make validate-plan``."""

from __future__ import annotations

from strategies.planning import gpu_of, step_time
from strategies.planning.step_bytes import activation_bytes_of_layers
from strategies.text_table import text_table
from tests.strategies.planning.published import ACTIVATIONS, NUM_FITTED, TIMES, Row
from tests.strategies.planning.test_step_bytes import GIB, layouts_of


def error_of(row: Row) -> float:
    """Returns the predicted time divided by the published one, less 1."""
    return step_time(row.model, row.layout, row.batch_size, gpu_of("A100")).total / row.seconds - 1


def main() -> None:
    """Prints a table of times, and one of activations."""
    rows = [("parameters", "GPUs", "data x pipe x tensor", "published s", "predicted s", "error", "")]
    for i, row in enumerate(TIMES):
        error, layout = error_of(row), row.layout
        mesh = f"{layout.num_data} x {layout.num_stages} x {layout.num_tensor}"
        seconds = (f"{row.seconds:.2f}", f"{row.seconds * (1 + error):.2f}", f"{error:+.1%}")
        fitted = "fitted" if i < NUM_FITTED else ""
        rows.append((f"{row.model.num_parameters / 1e9:.1f}e9", str(layout.num_devices), mesh, *seconds, fitted))
    print("Time of a step, arXiv:2104.04473, table 1:")
    print("\n".join(text_table(rows)))
    errors = [abs(error_of(row)) for row in TIMES]
    print(f"mean {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}\n")
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


if __name__ == "__main__":
    main()
