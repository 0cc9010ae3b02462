"""`python -m strategies.launch` without the import of TensorFlow by its package: it starts in a tenth of a second.

It works only as long as the launcher itself imports nothing but the standard library.
"""

import sys
from pathlib import Path
from types import ModuleType


def main() -> int:
    package = ModuleType("strategies")
    package.__path__ = [str(Path(__file__).parents[2] / "strategies")]
    sys.modules["strategies"] = package

    from strategies.launch import main as launch

    return launch()


if __name__ == "__main__":
    sys.exit(main())
