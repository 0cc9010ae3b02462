"""Checks the names and signatures that this package hooks into against the newest nightly build of Keras.

Run it as ``python -m tests.versions.inventory_next``; it needs the package registry, and changes no environment: the
nightly build is installed into a temporary folder, without its dependencies. It ends with 0 if nothing has changed or
the registry does not answer, else with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_REPORT = """
import keras
try:
    from strategies._keras_hooks import addresses
except RuntimeError as error:
    raise SystemExit(f"{error}")
gone, changed = addresses.changes()
print(f"Keras {keras.__version__}: {len(gone)} addresses are gone, {len(changed)} signatures or places have changed.")
print(*(f"  {address} does not exist" for address in gone), *(f"  {line}" for line in changed), sep="\\n", end="")
raise SystemExit(bool(gone or changed))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--pre", "--target", folder]
        installed = subprocess.run([*install, "keras-nightly"], capture_output=True, text=True)
        if installed.returncode:
            lines = installed.stderr.strip().splitlines() or ["no message"]
            print(f"inventory-next: keras-nightly could not be installed, so nothing was checked: {lines[-1]}")
            return 0
        path = os.pathsep.join([folder, str(ROOT)])
        environment = os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-W", "ignore", "-c", _REPORT]
        return subprocess.run(command, env=environment, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
