"""One of the two processes: runs the suite, writes pytest's exit code to a file and waits to be killed.

It does not exit by itself: TensorFlow's coordination service would end the other process with it.
"""

import sys
import time
from pathlib import Path

import pytest

if __name__ == "__main__":
    suite = Path(__file__).with_name("two_process_suite.py")
    code = pytest.main([str(suite), *sys.argv[2:], "-x", "-q", "-p", "no:cacheprovider"])
    sys.stdout.flush()
    Path(sys.argv[1]).write_text(str(int(code)))
    time.sleep(3600)
