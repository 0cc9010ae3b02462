"""One rank of the job that `test_horovod` starts: runs the suites it is given and leaves with pytest's exit code."""

import sys

import pytest

if __name__ == "__main__":
    raise SystemExit(pytest.main([*sys.argv[1:], "-x", "-q", "-p", "no:cacheprovider"]))
