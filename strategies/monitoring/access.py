"""The decision who may read the status of a job."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

from strategies.monitoring.settings import StatusSettings, is_loopback

#: Asks a browser for a password; the user name does not matter.
CHALLENGE = 'Basic realm="the status of this job: any name, and the token as password", charset="UTF-8"'


def may_read(settings: StatusSettings, headers: Mapping[str, str]) -> bool:
    """Returns True if a request may read the status.

    With a token: if the request shows it, as `Authorization: Bearer TOKEN`, or as the password of basic authentication.
    Without one, at a loopback address: if it was sent to a loopback name. A page in a browser of this machine could
    otherwise read it, under a name of its own that resolves to 127.0.0.1 (DNS rebinding).

    Args:
        settings: those of the server.
        headers: the headers of the request, whose names may be in any case.
    """
    if settings.token:
        return any(_equal(settings.token, shown) for shown in _shown(headers.get("Authorization") or ""))
    return settings.is_loopback and is_loopback(_name(headers.get("Host") or ""))


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Returns True unless a page of another site sent the request, as a form there can."""
    origin = headers.get("Origin")
    return origin is None or origin.partition("://")[2] == headers.get("Host")


def _shown(authorization: str) -> list[str]:
    kind, _, value = authorization.strip().partition(" ")
    if kind.lower() == "bearer":
        return [value.strip()]
    if kind.lower() != "basic":
        return []
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [decoded.partition(":")[2]]


def _equal(token: str, shown: str) -> bool:
    """Compares in a time that does not depend on where they differ, nor on their lengths."""
    digests = [hashlib.sha256(text.encode(errors="replace")).digest() for text in (token, shown)]
    return hmac.compare_digest(*digests)


def _name(host: str) -> str:
    """Returns the name of a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.rpartition(":")[0] if host.count(":") == 1 else host
