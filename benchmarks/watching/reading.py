"""A client that reads the status once a second, as a page and Prometheus do."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator


@contextlib.contextmanager
def once_a_second(port: int) -> Iterator[None]:
    """Context manager: reads JSON and Prometheus text at a port of this machine, whenever somebody answers there."""
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(1.0):
            for path in ("status.json", "metrics"):
                # While the job is stopped for other measurements, nobody answers.
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=1):
                    pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5.0)
