from typing import Any

from tests.surface.page import page

OUTCOMES: list[dict[str, Any]] = [
    {"grid": "layers", "cell": ["Dense", "LoRA", "data=2"], "kind": "equal", "difference": 1e-7, "words": ""},
    {"grid": "layers", "cell": ["Dense", "LoRA", "pipe=2"], "kind": "refused", "difference": None, "words": "no"},
    {"grid": "layers", "cell": ["Conv2D", "LoRA", "data=2"], "kind": "warned", "difference": 1.0, "words": "well"},
    {"grid": "readers", "cell": ["pandas", "data=2"], "kind": "not run", "difference": None, "words": "needs pandas"},
    {"grid": "processes", "cell": ["numpy", "Horovod"], "kind": "equal", "difference": 0.0, "words": ""},
]


def test_page() -> None:
    lines = page(OUTCOMES).splitlines()
    assert "| LoRA | 1 / 1 / 0 | 0 / 0 / 0 | 0 / 0 / 0 | 0 / 0 / 0 | 0 / 0 / 0 | 0 / 0 / 1 | 0 / 0 / 0 |" in lines
    assert "- Refused: Dense (LoRA, pipe=2): no" in lines
    assert "- Warned of: Conv2D (LoRA, data=2): well" in lines
    assert lines[lines.index("| | data=2 | Horovod |") :] == [
        "| | data=2 | Horovod |",
        "|---|---|---|",
        "| pandas | not run |  |",
        "| numpy |  | equal |",
        "",
        "- Not run: pandas (data=2): needs pandas",
    ]
