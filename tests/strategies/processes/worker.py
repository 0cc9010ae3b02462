"""One of the processes that run the suite together; arguments are pytest's."""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    suite = Path(__file__).with_name("suite.py")
    # Not the conftest's: it makes eight devices.
    sys.exit(pytest.main([str(suite), "-x", "-q", "-p", "no:cacheprovider", "--noconftest", *sys.argv[1:]]))
