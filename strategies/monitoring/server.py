"""The server of a job's status: a page, JSON and Prometheus text over HTTP, read-only but for requests of traces."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import socketserver
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

from strategies.monitoring.access import CHALLENGE, is_own_page, may_read
from strategies.monitoring.job_status import read_status
from strategies.monitoring.prometheus import CONTENT_TYPE, prometheus_text
from strategies.monitoring.settings import StatusSettings
from strategies.monitoring.store import ReportStore
from strategies.monitoring.trace_service import TraceError, TraceService

_PAGE = Path(__file__).with_name("page.html")
_JSON, _HTML, _TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
# A client that sends or reads nothing for so long is dropped.
_CLIENT_SECONDS = 10.0
_MOST_CLIENTS = 32
# A whole request, however slowly it comes, has this time to arrive.
_REQUEST_SECONDS = 10.0
# The longest wait of `close`.
_POLL_SECONDS = 0.1
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


def listen(settings: StatusSettings) -> socket.socket:
    """Returns a socket that listens at the address of the settings.

    Raises:
        OSError: the port is in use, or the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    return socket.create_server((settings.host.strip("[]"), settings.port), family=family, backlog=64)


def address_of(listener: socket.socket, settings: StatusSettings) -> str:
    """Returns the address for people, as in "127.0.0.1:8642": the machine's name if it listens at all of its own."""
    port, host = listener.getsockname()[1], settings.host.strip("[]")
    host = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    return f"{f'[{host}]' if ':' in host else host}:{port}"


class StatusServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves the status that a store has, with a thread for each client.

    Args:
        listener: a listening socket, which the server closes at its end.
        settings: the address and the token.
        store: has the reports.

    Example:

        settings = StatusSettings(port=0)
        server = StatusServer(listen(settings), settings, FolderStore(folder))
        server.start()
        print(server.url)
        server.close()
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, settings: StatusSettings, store: ReportStore) -> None:
        self.address_family = listener.family
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.settings, self.store = settings, store
        #: "host:port" for people, and the address of the page.
        self.address = address_of(listener, settings)
        self.url = f"http://{self.address}"
        self.traces = TraceService(store)
        #: The connections whose requests have not arrived as a whole, with the times at which they were made.
        self.arriving: dict[Any, float] = {}
        self._clients = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._thread = threading.Thread(
            target=self.serve_forever, args=[_POLL_SECONDS], name="strategies-status", daemon=True
        )

    def start(self) -> None:
        """Serves from a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops serving, and closes the socket."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(2.0)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a client, unless there are too many: a process that trains must not drown in threads."""
        if self._clients.acquire(blocking=False):
            self.arriving[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a client on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.arriving.pop(request, None)
            self._clients.release()

    def service_actions(self) -> None:
        """Ends connections whose requests take too long: a few of these, without a token, would hold all places."""
        too_early = time.monotonic() - _REQUEST_SECONDS
        for request, began in self.arriving.copy().items():
            if began < too_early:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: a client that leaves early is no error of the job."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: StatusServer
    server_version, sys_version = "keras-strategies", ""
    timeout = _CLIENT_SECONDS

    def do_GET(self) -> None:
        """Answers a request to read."""
        if not self._is_allowed():
            return
        path = urllib.parse.urlsplit(self.path).path
        if path == "/":
            self._send(200, _HTML, _PAGE.read_text())
        elif path == "/status.json":
            self._send(200, _JSON, json.dumps(self._status().to_json()))
        elif path == "/metrics":
            self._send(200, CONTENT_TYPE, prometheus_text(self._status()))
        elif path.startswith("/trace/"):
            request_id, _, rank = path.removeprefix("/trace/").partition("/")
            answers = self.server.traces.answers(request_id)
            if answers is None:
                self._send(404, _TEXT, "There is no such trace, or a later one has replaced it.\n")
            elif rank:
                events = answers.events.get(int(rank) if rank.isdecimal() else -1)
                self._send(
                    404 if events is None else 200, _TEXT, "This rank has no events.\n" if events is None else events
                )
            else:
                self._send(200, _JSON, json.dumps(answers.to_json()))
        else:
            self._send(404, _TEXT, "There are /, /status.json and /metrics.\n")

    do_HEAD = do_GET  # noqa: N815 - the name of the base class

    def do_POST(self) -> None:
        """Answers a request for a trace: the only one that the ranks notice."""
        if not self._is_allowed():
            return
        parts = urllib.parse.urlsplit(self.path)
        if parts.path != "/trace" or not is_own_page(self._headers()):
            self._send(404, _TEXT, "The status can be read only. There is POST /trace?steps=5.\n")
            return
        steps = urllib.parse.parse_qs(parts.query).get("steps", ["5"])[0]
        try:
            request = self.server.traces.request(int(steps) if steps.isdecimal() else 0)
        except (TraceError, OSError) as error:
            self._send(409, _TEXT, f"{error}\n")
        else:
            limit_seconds = self.server.traces.limit_seconds
            self._send(200, _JSON, json.dumps(request.to_json() | {"limit_seconds": limit_seconds}))

    def _status(self) -> Any:
        return read_status(self.server.store, time.time())

    def _headers(self) -> dict[str, str]:
        return {name.title(): value for name, value in self.headers.items()}

    def _is_allowed(self) -> bool:
        """Returns True for those who may read; sends the others away, whatever they have asked for."""
        self.server.arriving.pop(self.connection, None)
        if may_read(self.server.settings, self._headers()):
            return True
        if self.server.settings.token:
            text = "The status of this job needs its token, as Authorization: Bearer TOKEN, or as a password.\n"
            self._send(401, _TEXT, text, {"WWW-Authenticate": CHALLENGE})
        else:
            self._send(403, _TEXT, "Without a token, only http://localhost and http://127.0.0.1 are served.\n")
        return False

    def _send(self, code: int, kind: str, text: str, more: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | _HEADERS | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the output is that of the job."""


def serve(settings: StatusSettings, store: ReportStore) -> StatusServer:
    """Starts a server.

    Raises:
        OSError: it cannot listen there.
    """
    server = StatusServer(listen(settings), settings, store)
    server.start()
    return server
