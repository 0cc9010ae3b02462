"""One of the processes that run the suite together: leaves pytest's exit code in a file.

Arguments: the file, then pytest's.
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    suite = Path(__file__).with_name("suite.py")
    code = pytest.main([str(suite), "-x", "-q", "-p", "no:cacheprovider", "--noconftest", *sys.argv[2:]])
    sys.stdout.flush()
    Path(sys.argv[1]).write_text(str(int(code)))
