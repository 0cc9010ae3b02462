"""Text that processes tell each other before Horovod starts, through the store by which horovodrun joins them.

Horovod takes process sets when it starts, and waits if they differ between processes: what they depend on is compared
before. There is a store where Horovod runs over Gloo; mpirun has none.
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

import horovod.tensorflow as hvd

_SCOPE = "keras-strategies"
# Between two looks for the text of a process that has not come yet: the store answers at once, it does not wait.
_PAUSE_SECONDS = 0.05
_REQUEST_SECONDS = 10.0
# The store is on a host of the job: no proxy knows it.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def told_by_all(text: str, environment: Mapping[str, str] | None = None) -> list[str] | None:
    """Returns what every process passed, by rank; None where there is no store, or Horovod runs already.

    None, too, if a process does not come within HOROVOD_GLOO_TIMEOUT_SECONDS: Horovod itself says so then.
    """
    variables = os.environ if environment is None else environment
    address, port = (variables.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    if hvd.is_initialized() or not address or not port or variables.get("HOROVOD_ELASTIC", "0") != "0":
        return None
    url = f"http://{address}:{port}/{_SCOPE}"
    deadline = time.monotonic() + float(variables.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "30"))
    try:
        put = urllib.request.Request(f"{url}/{variables['HOROVOD_RANK']}", text.encode(), method="PUT")
        _opener.open(put, timeout=_REQUEST_SECONDS).close()
        said = [_read(f"{url}/{rank}", deadline) for rank in range(int(variables["HOROVOD_SIZE"]))]
    except (OSError, KeyError, http.client.HTTPException):
        return None
    return None if None in said else [each for each in said if each is not None]


def _read(url: str, deadline: float) -> str | None:
    while time.monotonic() < deadline:
        try:
            with _opener.open(url, timeout=_REQUEST_SECONDS) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        time.sleep(_PAUSE_SECONDS)
    return None
