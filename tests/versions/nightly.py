"""Installs the newest nightly builds of Keras and KerasHub into this environment, in place of Keras' last release.

Run it as ``python -m tests.versions.nightly``, in an environment of its own: ``make test-next`` does. The package of a
nightly build has another name, but the same files as a release, so the release is removed first. TensorFlow stays as it
is, although the packages that KerasHub requires ask for a release.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys

#: KerasHub's nightly build, and what it requires that depends on a release of TensorFlow or Keras.
_HUB = "keras-hub-nightly"
_NIGHTLY = {"keras": "keras-nightly", "tensorflow-text": "tensorflow-text-nightly"}


def main() -> None:
    """Installs the builds and prints their versions.

    Raises:
        CalledProcessError: if pip fails; its messages are on the screen.
    """
    builds = [*_NIGHTLY.values(), _HUB]
    # Removing one of two packages with the same files leaves neither whole.
    _pip("uninstall", "--yes", *_NIGHTLY, *_NIGHTLY.values())
    _pip("install", "--no-deps", "--pre", "--upgrade", *builds)
    importlib.invalidate_caches()
    required = [
        line.split(";")[0].strip() for line in importlib.metadata.requires(_HUB) or [] if "extra ==" not in line
    ]
    _pip("install", *(line for line in required if re.split(r"[^\w-]", line)[0] not in _NIGHTLY))
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", *builds)))


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--no-input", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    main()
