"""The settings of the status server, from the environment: address, port, token."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: The environment variables of users.
PORT_VARIABLE = "STRATEGIES_STATUS_PORT"
HOST_VARIABLE = "STRATEGIES_STATUS_HOST"
TOKEN_VARIABLE = "STRATEGIES_STATUS_TOKEN"
#: A file with the token, for launchers that put the environment onto command lines, which other users can see.
TOKEN_FILE_VARIABLE = "STRATEGIES_STATUS_TOKEN_FILE"
#: Those that a server needs, and a rank under our launcher does not.
PRIVATE_VARIABLES = (PORT_VARIABLE, HOST_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)
#: The folder of the launcher's status, which it passes to its ranks.
FOLDER_VARIABLE = "STRATEGIES_STATUS_DIR"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class StatusSettings:
    """The address and the token of a status server.

    Args:
        port: 0 for any free one.
        host: the address to listen at; a loopback address unless the user names another.
        token: what a client has to show; empty: nothing. Spaces around it do not count.

    Raises:
        ValueError: the port is out of range, or the token has characters that a header cannot have.
    """

    port: int
    host: str = LOOPBACK
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(
                f"The port of the status must be between 0 and 65535, 0 for a free one. Received: {self.port}"
            )
        object.__setattr__(self, "token", self.token.strip())
        check_token(self.token)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], port: int | None = None, host: str | None = None
    ) -> StatusSettings | None:
        """Returns the settings; None if no port is named, which means that nothing is served.

        Args:
            environment: the environment variables.
            port, host: those of a command line, which count more.

        Raises:
            ValueError: the port is not a number from 0 to 65535, or the token cannot be read or used.
        """
        named = environment.get(PORT_VARIABLE, "")
        if port is None:
            if not named:
                return None
            if not named.isdecimal():
                raise ValueError(f"{PORT_VARIABLE} must be a port, 0 for a free one. Received: {named!r}")
            port = int(named)
        return cls(port, host or environment.get(HOST_VARIABLE) or LOOPBACK, token_of(environment))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect to the host."""
        return is_loopback(self.host)

    def with_token(self) -> StatusSettings:
        """Returns the settings with a random token, if others can connect and there is none."""
        if self.token or self.is_loopback:
            return self
        return StatusSettings(self.port, self.host, secrets.token_urlsafe(24))


def token_of(environment: Mapping[str, str]) -> str:
    """Returns the token that the environment has, or the file that it names; empty if there is none.

    Raises:
        ValueError: the file cannot be read.
    """
    token, path = environment.get(TOKEN_VARIABLE, ""), environment.get(TOKEN_FILE_VARIABLE, "")
    if token or not path:
        return token.strip()
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"The file of {TOKEN_FILE_VARIABLE} cannot be read: {error}. Received: {path!r}") from None


def check_token(token: str) -> None:
    """Raises ValueError if a header of HTTP cannot have a token."""
    if not (token.isascii() and token.isprintable()):
        raise ValueError("The token of the status must have printable ASCII characters only.")


def is_loopback(host: str) -> bool:
    """Returns True for "localhost" and the addresses of the loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
