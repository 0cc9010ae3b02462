"""The output of the processes, copied line by line with the rank as a prefix. Standard library only."""

import collections
import contextlib
import os
import re
import select
import selectors
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

#: Longer lines are split into lines of this many bytes.
MAX_LINE_BYTES = 1 << 16
#: The number of lines of each stream that are kept for the report on a failure, and the maximum bytes of a line.
NUM_LAST_LINES = 20
_MAX_LAST_LINE_BYTES = 2000
# The time limit of reading from pipes that are still open after all processes have ended.
_LEFTOVER_SECONDS = 5.0
_STDOUT, _STDERR = 1, 2
_ERASE_LINE = b"\x1b[K"
# A carriage return at the end of the data may be half of a line end: it is kept until more data arrive.
_LINE = re.compile(rb"[^\r\n]*+(?:\r*\n|\r+(?=[^\r\n]))")


class Lines:
    """Splits a stream of bytes into lines that end in a line feed or, like progress bars, in "\\r"."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the lines that `data` completes, with their line ends."""
        text, at = self._rest + data, 0
        while match := _LINE.match(text, at):
            yield from _pieces(match[0])
            at = match.end()
        *long, self._rest = _pieces(text[at:])
        yield from long
        if self._rest.endswith(b"\r\r"):
            # Repeated carriage returns mean the same as one.
            self._rest = self._rest.rstrip(b"\r") + b"\r"

    def close(self) -> Iterator[bytes]:
        """Yields the bytes after the last line end, with a line end."""
        if self._rest:
            yield self._rest.rstrip(b"\r") + b"\n"
        self._rest = b""


def _pieces(line: bytes) -> Iterator[bytes]:
    while len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        yield line[:MAX_LINE_BYTES] + b"\n"
        line = line[MAX_LINE_BYTES:]
    yield line


@dataclass
class _Source:
    prefix: bytes
    target: int
    lines: Lines = field(default_factory=Lines)
    last: collections.deque[bytes] = field(default_factory=lambda: collections.deque(maxlen=NUM_LAST_LINES))

    def remember(self, line: bytes) -> None:
        if self.last and self.last[-1].endswith(b"\r"):
            # As on a terminal: only the last state of a progress bar is kept.
            self.last.pop()
        self.last.append(line[:_MAX_LAST_LINE_BYTES])


class Output:
    """A thread that copies the output of all processes to that of the launcher.

    The thread is started after the last process: a process forked while it runs could inherit a lock that it holds.
    Only this thread blocks if the launcher's output is not read; the main thread continues to forward signals.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._sources: dict[int, dict[int, _Source]] = {}
        self._terminals = {target for target in (_STDOUT, _STDERR) if os.isatty(target)}
        self._bar_is_shown = False
        self._lost: set[int] = set()
        self._notes: collections.deque[bytes] = collections.deque()
        self._finishing = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._wake_up)
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)

    def connect(self, rank: int) -> tuple[int, int]:
        """Returns file descriptors for stdout and stderr of a process, to be closed by the caller after its start.

        If the launcher's stdout is a terminal, so is that of the process, which then draws its usual progress bars.
        """
        prefix = b"[%d] " % rank
        streams = []
        for target in (_STDOUT, _STDERR):
            is_terminal = target == _STDOUT and target in self._terminals
            reader, writer = _open_terminal(len(prefix)) if is_terminal else os.pipe()
            source = _Source(prefix, target)
            self._sources.setdefault(rank, {})[target] = source
            self._selector.register(reader, selectors.EVENT_READ, self._reading(reader, source))
            streams.append(writer)
        return streams[0], streams[1]

    def start(self) -> None:
        """Starts copying; call it after all processes have been started."""
        self._thread.start()

    def log(self, text: str) -> None:
        """Prints a line of the launcher to stderr, between those of the processes. Never blocks."""
        self._notes.append(b"%s\n" % text.encode(errors="replace"))
        self._wake()

    def finish(self, timeout_seconds: float | None = None) -> None:
        """Waits until all output is printed, or for `timeout_seconds`; call it when all processes have ended."""
        self._finishing = True
        if self._thread.ident is None:
            self._thread.start()
        self._wake()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            # Our output is blocked. The thread ends with the launcher.
            return
        for key in list(self._selector.get_map().values()):
            self._drop(key.fd)
        self._selector.close()
        os.close(self._wake_writer)

    def last_lines(self, rank: int) -> dict[str, list[str]]:
        """Returns the last lines of "stderr" and "stdout", without line ends; call it after `finish`."""
        sources = self._sources[rank]
        return {
            name: [line.rstrip(b"\r\n").decode(errors="replace") for line in sources[target].last]
            for name, target in (("stderr", _STDERR), ("stdout", _STDOUT))
        }

    def _work(self) -> None:
        end: float | None = None
        while len(self._selector.get_map()) > 1 or not self._finishing:
            events = self._selector.select(0 if self._finishing else None)
            for key, _ in events:
                key.data()
            while self._notes:
                self._note(self._notes.popleft())
            if self._finishing:
                # A process that has left its group may hold a pipe open forever.
                end = end or time.monotonic() + _LEFTOVER_SECONDS
                if not events or time.monotonic() >= end:
                    break
        for sources in self._sources.values():
            for source in sources.values():
                self._print(source, source.lines.close())
        while self._notes:
            self._note(self._notes.popleft())
        if self._bar_is_shown:
            self._write(min(self._terminals), b"\n")

    def _reading(self, reader: int, source: _Source) -> Callable[[], None]:
        def read() -> None:
            # Reading a pseudo-terminal whose other end is closed raises an error.
            with contextlib.suppress(OSError):
                if data := os.read(reader, 1 << 16):
                    self._print(source, source.lines.feed(data))
                    return
            self._print(source, source.lines.close())
            self._drop(reader)

        return read

    def _drop(self, reader: int) -> None:
        self._selector.unregister(reader)
        os.close(reader)

    def _wake(self) -> None:
        os.write(self._wake_writer, b"\0")

    def _wake_up(self) -> None:
        os.read(self._wake_reader, 1 << 10)

    def _print(self, source: _Source, lines: Iterator[bytes]) -> None:
        is_terminal = source.target in self._terminals
        printed = []
        for line in lines:
            if line.endswith(b"\r") and not line.strip(b"\b\r"):
                # A progress bar returns to the start of its line.
                continue
            source.remember(line)
            if is_terminal and self._bar_is_shown:
                printed.append(_ERASE_LINE)
            if is_terminal:
                self._bar_is_shown = line.endswith(b"\r")
            printed += (source.prefix, line)
        self._write(source.target, b"".join(printed))

    def _note(self, line: bytes) -> None:
        over_a_bar = self._bar_is_shown and _STDERR in self._terminals
        self._write(_STDERR, _ERASE_LINE + line if over_a_bar else line)

    def _write(self, target: int, data: bytes) -> None:
        while data and target not in self._lost:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                select.select([], [target], [])
            except OSError:
                # The reader has closed the pipe, as after `| head`: training continues.
                self._lost.add(target)


def _open_terminal(prefix_width: int) -> tuple[int, int]:
    """Returns both ends, ours first, of a pseudo-terminal as wide as our terminal without the prefix."""
    ours, theirs = os.openpty()
    attributes = termios.tcgetattr(theirs)
    # Like a pipe: our own terminal converts line feeds.
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    with contextlib.suppress(OSError):
        rows, columns = termios.tcgetwinsize(_STDOUT)
        termios.tcsetwinsize(theirs, (rows, max(0, columns - prefix_width)))
    return ours, theirs
