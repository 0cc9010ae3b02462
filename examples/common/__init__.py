"""Common parts of the examples: flags, devices, the folder of a run, training that resumes after a kill."""

import importlib.util
import sys
from pathlib import Path

# In a clone with nothing installed, the library is the clone's own. An installed one comes first: it is what the user
# means to run, and the clone's may be of another version.
if importlib.util.find_spec("strategies") is None:
    sys.path.append(str(Path(__file__).resolve().parents[2]))
