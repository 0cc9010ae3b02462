"""One rank of the job that `test_horovod` starts: runs the suites it is given and leaves with pytest's exit code."""

import sys

import horovod.tensorflow as hvd
import pytest

if __name__ == "__main__":
    code = pytest.main([*sys.argv[1:], "-x", "-q", "-p", "no:cacheprovider"])
    if code == 0 and hvd.is_initialized():
        # Horovod ends on all processes when one process ends, even on two that still exchange with each other.
        hvd.allgather_object(None)
    raise SystemExit(code)
