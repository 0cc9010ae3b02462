"""A training step of a job that is run dry: placement, groups, programs, order and bytes of all ranks, on no device.

`job` describes the job, `programs` makes each rank's operations from the schedule's table, `execution` executes them
and finds those that wait forever, which `deadlock` explains; `imbalance` finds uneven stages, `traffic` the bytes
between ranks. `report` is the text and the JSON that ``python -m strategies.plan --dry-run`` prints.
"""

from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.run import DryRun

__all__ = ["DryRun", "Job"]
