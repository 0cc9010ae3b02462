"""The reporter of this process, if its job is watched. It starts with the first strategy, for the process' lifetime."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping

from strategies.control_plane import Member
from strategies.control_plane.this_process import log
from strategies.monitoring.rank_reporter import Probes, Reporter
from strategies.monitoring.reports import RANK
from strategies.monitoring.settings import FOLDER_VARIABLE, TOKEN_VARIABLE, StatusSettings
from strategies.monitoring.store import FolderStore, JobStore, MemoryStore, ReportStore

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_reporter: Reporter | None = None
_has_begun = False


def reporter() -> Reporter | None:
    """Returns the reporter of this process; None if nobody watches its job."""
    return _reporter


def watch(member: Member, probes: Probes) -> None:
    """Has this process report its status, if the environment asks for it; a later call only replaces the probes.

    Under our launcher it reports to the launcher's folder. Otherwise rank 0 serves the status itself, at
    STRATEGIES_STATUS_PORT, and the others report to it through the job's key-value store. Of a rank's process and its
    children, which inherit its environment, only the first reports. Never raises.

    Args:
        member: this process in its job.
        probes: read this process.
    """
    global _reporter, _has_begun
    with _lock:
        if not _has_begun:
            _has_begun = True
            try:
                _reporter = _begun(member, os.environ)
            except Exception as error:
                _logger.warning("The status of this rank cannot be shown, and it trains on: %s", error)
        if _reporter is not None:
            _reporter.probes = probes


def _begun(member: Member, environment: Mapping[str, str]) -> Reporter | None:
    rank, world_size = member.rank, member.world_size
    store: ReportStore
    if folder := environment.get(FOLDER_VARIABLE):
        if world_size == 1:
            # Ranks that train for themselves, each under a strategy of its own process.
            rank, world_size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
        own = FolderStore(folder)
        if not own.claim(f"{RANK}-{rank}"):
            # A child of the rank's process, which has inherited its environment: the report is that of the rank.
            return None
        store = own
    else:
        settings = StatusSettings.from_environment(environment)
        if settings is None:
            return None
        store = MemoryStore() if member.store is None else JobStore(member.store)
        if rank == 0:
            _serve(settings, store)
    made = Reporter(rank, world_size, store)
    made.start()
    # Before the interpreter ends: the thread reads variables of TensorFlow.
    atexit.register(made.stop)
    return made


def _serve(settings: StatusSettings, store: ReportStore) -> None:
    if not settings.token and not settings.is_loopback:
        _logger.warning(
            "The status of this job is not served: others could read it at %s. Set %s to a token as well.",
            settings.host,
            TOKEN_VARIABLE,
        )
        return
    # Only here: the others need no server.
    from strategies.monitoring.server import serve

    try:
        server = serve(settings, store)
    except OSError as error:
        _logger.warning(
            "The status of this job is not served: rank 0 cannot listen at port %d of %s: %s.",
            settings.port,
            settings.host,
            error,
        )
        return
    atexit.register(server.close)
    log(f"status: {server.url} (python -m strategies.status {server.address})")
