"""A running job as others see it: what ranks and launchers report, the status made of it, and the server that shows it.

Standard library only. Each rank's `reporter` posts a report twice a second (`reports`) to a `store`: a folder of its
launcher, or the job's key-value store. From these, `job_status` makes the status of the job, which the `server` sends
as a page, as JSON and as Prometheus text. The command is `strategies.status`.
"""

from strategies.monitoring.rank_reporter import Probes, Reporter
from strategies.monitoring.this_process import reporter, watch
from strategies.monitoring.traces import TraceRequest

__all__ = ["Probes", "Reporter", "TraceRequest", "reporter", "watch"]
