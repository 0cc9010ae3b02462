"""The settings of the status server, from a command line and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from strategies.monitoring.settings import StatusSettings, is_loopback

ENVIRONMENT = {
    "STRATEGIES_STATUS_PORT": "8642",
    "STRATEGIES_STATUS_HOST": "0.0.0.0",
    "STRATEGIES_STATUS_TOKEN": "secret",
}


def test_nothing_is_served_unless_asked() -> None:
    assert StatusSettings.from_environment({"STRATEGIES_STATUS_HOST": "0.0.0.0"}) is None


def test_the_command_line_counts_more() -> None:
    assert StatusSettings.from_environment(ENVIRONMENT) == StatusSettings(8642, "0.0.0.0", "secret")
    assert StatusSettings.from_environment(ENVIRONMENT, 0, "::1") == StatusSettings(0, "::1", "secret")
    assert StatusSettings.from_environment({}, 0) == StatusSettings(0, "127.0.0.1", "")


@pytest.mark.parametrize("port", ["65536", "-1", "x", "1.5"])
def test_ports_that_are_none(port: str) -> None:
    with pytest.raises(ValueError, match=r"Received: '?" + port):
        StatusSettings.from_environment({"STRATEGIES_STATUS_PORT": port})


def test_a_token_is_made_where_others_can_connect() -> None:
    first, second = (StatusSettings(0, "0.0.0.0").with_token().token for _ in range(2))
    assert len(first) >= 32
    assert first != second
    assert StatusSettings(0).with_token().token == ""
    assert StatusSettings(0, "0.0.0.0", "secret").with_token().token == "secret"


def test_a_token_is_never_printed() -> None:
    assert "secret" not in repr(StatusSettings(0, "0.0.0.0", "secret"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "a", ""])
def test_what_others_reach(host: str) -> None:
    assert not is_loopback(host)


def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" secret\n")
    environment = {"STRATEGIES_STATUS_PORT": "0", "STRATEGIES_STATUS_TOKEN_FILE": str(path)}
    assert StatusSettings.from_environment(environment) == StatusSettings(0, token="secret")
    with pytest.raises(ValueError, match=r"STRATEGIES_STATUS_TOKEN_FILE cannot be read: .*No such file"):
        StatusSettings.from_environment(environment | {"STRATEGIES_STATUS_TOKEN_FILE": str(tmp_path / "none")})


def test_tokens_that_no_client_could_show() -> None:
    assert StatusSettings(0, token=" secret\n").token == "secret"
    for token in ("pässword", "a\nb"):
        with pytest.raises(ValueError, match="printable ASCII"):
            StatusSettings(0, token=token)
