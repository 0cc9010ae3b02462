"""The launcher's part of the status of its job: the folder of the reports, and what is done with it.

Launchers of other nodes have a folder, too, and share what is in it with node 0, over their link. Nothing that fails
here ends the job: it goes on without a status. Standard library only.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from strategies.launching.messages import Node, Shared, Start
from strategies.launching.processes import Process
from strategies.launching.sharing import Sharing
from strategies.monitoring.reports import LAUNCHER, RANK, JobState, LauncherReport, RankProcess, to_text
from strategies.monitoring.settings import FOLDER_VARIABLE, PRIVATE_VARIABLES, StatusSettings
from strategies.monitoring.store import FolderStore
from strategies.monitoring.traces import ANSWERS, REQUEST

if TYPE_CHECKING:
    from strategies.launching.status_server import ServerProcess


class StatusService:
    """The status of a job on one node, or nothing if nobody watches it.

    Args:
        own: this node.
        settings: the address and the token, on node 0; None: the job is not watched.
        log: prints a line of the launcher.
    """

    def __init__(self, own: Node, settings: StatusSettings | None, log: Callable[[str], None]) -> None:
        self._own, self._settings, self._log = own, settings, log
        self._store: FolderStore | None = None
        self._server: ServerProcess | None = None
        self._sharing: Sharing | None = None
        self._start: Start | None = None
        self._began = 0.0
        self._last = ""
        self._has_failed = False

    def begin(self, start: Start) -> None:
        """Begins a round of ranks: what those of the round before have reported is removed, records included."""
        self._start, self._began, self._last, self._sharing = start, time.time(), "", None
        if not start.is_watched or self._has_failed:
            return
        if self._store is None:
            self._open()
        if self._store is None:
            return
        # First the new report: those who watch see at any time how many ranks there are.
        self.note(JobState.RUNNING, ())
        self._store.forget(LAUNCHER, but=self._own.node_rank)
        for key in (RANK, REQUEST, f"{ANSWERS}*"):
            self._store.forget(key)
        if len(start.nodes) > 1:
            self._sharing = Sharing(self._store, start.round, is_node_0=self._own.node_rank == 0)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of a rank: it needs the folder, and not the address and the token of the server."""
        own = {name: value for name, value in environment.items() if name not in (*PRIVATE_VARIABLES, FOLDER_VARIABLE)}
        return own if self._store is None else own | {FOLDER_VARIABLE: str(self._store.folder)}

    def note(self, state: JobState, processes: Sequence[Process]) -> None:
        """Reports the state of the ranks of this node."""
        start, store = self._start, self._store
        if start is None or store is None:
            return
        report = LauncherReport(
            node=self._own.name,
            state=state,
            world_size=sum(len(node.ports) for node in start.nodes),
            num_restarts=start.num_restarts,
            max_restarts=start.max_restarts,
            processes=tuple(RankProcess(each.rank, each.pid, each.is_stopped, each.status) for each in processes),
            began=self._began,
            reason=start.reason,
        )
        text = to_text(report)
        if text != self._last:
            self._last = text
            with contextlib.suppress(OSError):
                store.post(LAUNCHER, self._own.node_rank, text)

    def outgoing(self) -> list[Shared]:
        """Returns what other launchers do not have yet."""
        return [] if self._sharing is None else self._sharing.outgoing()

    def take(self, shared: Shared) -> None:
        """Takes what another launcher has shared."""
        if self._sharing is not None:
            self._sharing.take(shared)

    def close(self) -> None:
        """Ends the server and removes the folder."""
        server, store = self._server, self._store
        self._server = self._store = self._sharing = None
        if server is not None:
            server.close()
        if store is not None:
            shutil.rmtree(store.folder, ignore_errors=True)

    def _open(self) -> None:
        """Makes the folder, and on node 0 starts the server."""
        try:
            self._store = FolderStore(tempfile.mkdtemp(prefix="strategies-status-"))
            if self._settings is not None and self._own.node_rank == 0:
                # Only here: a launcher without a status imports no server.
                from strategies.launching.status_server import ServerProcess

                self._server = ServerProcess(self._settings, self._store.folder)
                self._log(self._server.announcement)
        except OSError as error:
            self._has_failed = True
            address = "" if self._settings is None else f", at port {self._settings.port} of {self._settings.host}"
            self._log(f"the job goes on without a status{address}: {error}")
            self.close()
