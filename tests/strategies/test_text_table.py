"""Tables of plain text."""

from strategies.text_table import text_table

ROWS = [("name", "of", "bytes"), ("a", "class", "1,000"), ("longer", "", "7")]


def test_names_are_at_the_left_and_numbers_at_the_right() -> None:
    assert text_table(ROWS) == ["name       of  bytes", "a       class  1,000", "longer             7"]


def test_a_line_has_no_blanks_at_its_end() -> None:
    assert text_table([row[:2] for row in ROWS], left=(0, 1)) == ["name    of", "a       class", "longer"]
