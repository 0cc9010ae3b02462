"""The headers of a request decide who may read the status."""

from __future__ import annotations

import base64

import pytest

from strategies.monitoring.access import is_own_page, may_read
from strategies.monitoring.settings import StatusSettings

OPEN, CLOSED, PUBLIC = StatusSettings(0), StatusSettings(0, token="password:1"), StatusSettings(0, "0.0.0.0")


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer token-1"}, {"Authorization": "bearer  token-1 "}])
def test_a_token_as_bearer(headers: dict[str, str]) -> None:
    assert may_read(StatusSettings(0, token="token-1"), headers)


@pytest.mark.parametrize("name", ["", "anybody"])
def test_a_token_as_password(name: str) -> None:
    assert may_read(CLOSED, basic(f"{name}:password:1"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "127.0.0.1:80"},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer token-2"},
        {"Authorization": "Bearer token-1x"},
        {"Authorization": "Bearer token-"},
        {"Authorization": "token-1"},
        {"Authorization": "Digest token-1"},
        {"Authorization": "Basic token-1"},
        {"Authorization": "Basic ####"},
        {"Authorization": "Basic //8="},
        {"Authorization": "Bearer \udcff"},
        basic("token-1"),
        basic("token-1:"),
    ],
    ids=str,
)
def test_strangers(headers: dict[str, str]) -> None:
    assert not may_read(StatusSettings(0, token="token-1"), headers)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8642", "localhost:8642", "[::1]:8642", "[::1]", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    assert may_read(OPEN, {"Host": host})


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:8642", "127.0.0.1.evil.example:1", "10.0.0.1"]
)
def test_another_name_for_loopback_is_refused(host: str | None) -> None:
    """A page of another site could let its own name resolve to 127.0.0.1, and read the status."""
    assert not may_read(OPEN, {} if host is None else {"Host": host})


def test_without_a_token_nobody_else_reads() -> None:
    assert not may_read(PUBLIC, {"Host": "127.0.0.1"})


def test_forms_of_other_sites() -> None:
    assert is_own_page({"Host": "localhost:8642"})
    assert is_own_page({"Host": "localhost:8642", "Origin": "http://localhost:8642"})
    assert not is_own_page({"Host": "localhost:8642", "Origin": "http://evil.example"})
    assert not is_own_page({"Host": "localhost:8642", "Origin": "null"})
