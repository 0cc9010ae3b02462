"""Runs one case in this process: `python -m tests.gpu.one NAME KIND FILE`. Writes its outcome to FILE, as JSON."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path


def main(name: str, kind: str, file: str) -> None:
    """Runs the case; an exception becomes its outcome."""
    from tests.gpu.cases import CASES
    from tests.gpu.outcome import Outcome
    from tests.gpu.setting import prepare

    case = CASES[name]
    try:
        outcome = case.run(prepare(kind, case.num_devices))
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(name, "failed", note=f"{type(error).__name__}: {error}"[:300])
    Path(file).write_text(outcome.as_json() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
