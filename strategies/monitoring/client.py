"""The client of a status server: reads the status of a job, and requests traces."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.monitoring.job_status import JobStatus

_POLL_SECONDS = 0.5
_TRACE_SECONDS = 120.0


class ClientError(Exception):
    """The server does not answer, or refuses; the message has the reason and the fix."""


class GoneError(ClientError):
    """Nobody listens at the address: the job has ended, or is not watched."""


class ClosedError(ClientError):
    """The connection was closed before an answer came, as by a tunnel to a job that has ended."""


@dataclass(frozen=True)
class Trace:
    """The traces of a job's ranks.

    Args:
        start_step: the number of finished training steps after which they begin.
        num_steps: their number of steps.
        events: by rank, the text that it has sent.
        errors: by rank, the reason why there is none.
    """

    start_step: int
    num_steps: int
    events: Mapping[int, str]
    errors: Mapping[int, str]


class Client:
    """Reads the status of a job.

    Args:
        address: "host:port", also as the launcher prints it, with "http://".
        token: the token of the server, if it needs one.
        timeout_seconds: the limit of each answer.

    Raises:
        ClientError: not an address.

    Example:

        client = Client("127.0.0.1:8642")
        print(client.status().seconds_left)
    """

    def __init__(self, address: str, token: str = "", timeout_seconds: float = 10.0) -> None:
        host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ClientError(f"Expected host:port, as the launcher prints it. Received: {address!r}")
        self.address = f"{host or '127.0.0.1'}:{port}"
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._token, self._timeout_seconds = token, timeout_seconds

    def read(self, path: str, method: str = "GET") -> str:
        """Returns the text under a path.

        Raises:
            ClientError: the server does not answer, refuses, or has no such text.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_seconds)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except ConnectionRefusedError:
            raise GoneError(
                f"Nobody listens at {self.address}: the job has ended, or it was started without --status-port."
            ) from None
        except (ConnectionError, http.client.IncompleteRead) as error:
            raise ClosedError(f"{self.address} has closed the connection without an answer: {error}.") from None
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(f"{self.address} does not answer: {error or type(error).__name__}.") from None
        finally:
            connection.close()
        if response.status == 401:
            had = "does not fit" if self._token else "is missing"
            raise ClientError(
                f"{self.address} needs the token of the job, and it {had}. Give it in STRATEGIES_STATUS_TOKEN, or the "
                "file that the launcher names with --token-file."
            )
        if response.status != 200:
            raise ClientError(f"{self.address} refuses: {text.strip() or response.reason}")
        return text

    def status(self) -> JobStatus:
        """Returns the status of the job.

        Raises:
            ClientError: the server does not answer, refuses, or has another version.
        """
        try:
            return JobStatus.from_json(self._json("/status.json"))
        except ValueError:
            raise ClientError(
                f"What answers at {self.address} is no status of a job, or one of another version of keras-strategies."
            ) from None

    def trace(
        self,
        num_steps: int,
        timeout_seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Trace:
        """Has all ranks record a few steps, and returns what they have sent.

        Args:
            num_steps: the number of steps.
            timeout_seconds: the limit of the wait for all ranks; those that have sent nothing then have an error. None:
                what the server says, which is two minutes, or more for slow steps.
            clock, sleep: for tests.

        Raises:
            ClientError: the server does not answer, or cannot request a trace now.
        """
        request = self._json(f"/trace?steps={num_steps}", "POST")
        limit = float(request.get("limit_seconds", _TRACE_SECONDS)) if timeout_seconds is None else timeout_seconds
        deadline = clock() + limit
        while True:
            answers = self._json(f"/trace/{request['id']}")
            if answers["complete"] or clock() >= deadline:
                break
            sleep(_POLL_SECONDS)
        ranks = {int(rank): answer for rank, answer in answers["ranks"].items()}
        errors = {rank: answer["error"] for rank, answer in ranks.items() if "error" in answer}
        late = f"it has sent nothing within {limit:g} s"
        errors |= {rank: late for rank in answers["expected"] if rank not in ranks}
        events = {rank: self.read(f"/trace/{request['id']}/{rank}") for rank in ranks if rank not in errors}
        return Trace(request["start_step"], request["num_steps"], events, errors)

    def _json(self, path: str, method: str = "GET") -> Any:
        text = self.read(path, method)
        try:
            return json.loads(text)
        except ValueError:
            raise ClientError(f"What answers at {self.address} is no status of a job.") from None
