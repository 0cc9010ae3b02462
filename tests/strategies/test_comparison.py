"""The result of a comparison names what is nearest to the cause, and prints what is equal in one line."""

from __future__ import annotations

from strategies.comparison import OUTPUTS, ComparedValue, Comparison

CALLED = ("first", "dropout", "second", "flatten", "last")


def row(kind: str, name: str, difference: float, layer: str = "", step: int = 0) -> ComparedValue:
    return ComparedValue(step, kind, name, layer or name, difference, 1e-6)


def result(*rows: ComparedValue) -> Comparison:
    return Comparison(rows, called=CALLED, sources_of_loss=("compile(loss=mse)", "adds"))


# In the order in which the optimizer has them, not in that of calls.
GRADIENTS = [row("gradient", f"{layer}/kernel", 0.5, layer) for layer in ("second", "first")]
EQUAL_GRADIENT = row("gradient", "last/kernel", 0.0, "last")


def test_the_first_output_that_differs_is_named_before_all_else() -> None:
    found = result(row("output", "first", 0.0), row("output", "second", 0.1), *GRADIENTS, row("log", "loss", 0.2))
    assert not found.ok
    assert found.suspects == ("second",)
    assert found.cause == (
        "'second' is the first layer whose output differs: by 1.0e-01, where rounding explains 1.0e-06."
    )
    assert result(row("output", OUTPUTS, 0.1)).cause.startswith("The model's outputs differ by 1.0e-01")


def test_of_gradients_the_last_layer_is_named_with_those_after_it_that_have_none() -> None:
    found = result(row("output", "first", 0.0), *GRADIENTS, EQUAL_GRADIENT, row("log", "accuracy", 0.2))
    assert found.suspects == ("second", "flatten")
    assert found.cause.startswith("All outputs and the loss are equal, and the gradient")
    assert result(*GRADIENTS).cause.startswith("Outputs were not compared, the loss is equal, and the gradient")
    assert "the gradient of 'second/kernel' differs by 5.0e-01" in found.cause
    assert found.cause.endswith("arises in the gradient of 'second' or 'flatten'.")


def test_a_loss_is_named_by_what_computes_it_and_a_metric_by_its_name() -> None:
    found = result(row("log", "accuracy", 0.1), row("log", "loss", 0.2), *GRADIENTS)
    assert found.suspects == ("compile(loss=mse)", "adds")
    assert found.cause.endswith("It is computed by 'compile(loss=mse)' or 'adds'.")
    found = result(row("log", "accuracy", 0.1), row("weight", "first/kernel", 0.1, "first", step=1))
    assert found.suspects == ("accuracy",)
    assert found.cause.startswith("The metric 'accuracy' differs before the first update: by 1.0e-01")


def test_later_steps_count_only_if_nothing_differs_before() -> None:
    found = result(
        EQUAL_GRADIENT, row("slot", "adam/m", 0.1, step=2), row("weight", "last/kernel", 0.1, "last", step=3)
    )
    assert found.cause.startswith("The optimizer's slot 'adam/m' is the first to differ, after step 2: by 1.0e-01")
    equal = result(EQUAL_GRADIENT)
    assert equal.ok
    assert (equal.first, equal.cause, equal.suspects) == (None, "", ())


def test_it_is_printed_as_a_table_and_sent_as_text() -> None:
    rows = [EQUAL_GRADIENT, row("gradient", "first/bias", 1e-7, "first"), *GRADIENTS]
    found = Comparison(tuple(rows), ("a finding",), ("random numbers of 'dropout'.",), CALLED, ("adds",))
    assert str(found).splitlines() == [
        f"NOT EQUAL to one device. {found.cause}",
        "step  kind      difference    limit  values",
        "   0  gradient     1.0e-07  1.0e-06  2 equal",
        "   0  gradient     5.0e-01  1.0e-06  second/kernel",
        "   0  gradient     5.0e-01  1.0e-06  first/kernel",
        "Not compared: random numbers of 'dropout'.",
        "Finding: a finding",
    ]
    many = Comparison([row("weight", f"weight {i}", 1.0, step=1) for i in range(20)])
    assert str(many).splitlines()[-1].split() == ["1", "weight", "and", "12", "more", "that", "differ"]
    assert str(result(EQUAL_GRADIENT)).splitlines()[0] == "equal to one device."
    sent = Comparison.from_json(found.to_json())
    assert (sent.rows, sent.findings) == (found.rows, ())
    assert (sent.notes, sent.called, sent.sources_of_loss) == (found.notes, found.called, found.sources_of_loss)
    assert Comparison.from_json(Comparison([row("log", "loss", float("inf"))]).to_json()).rows[0].difference > 1e300
