"""A process that has imported TensorFlow and Keras, and forks for each program that a test starts.

The imports take a process six seconds of a core, and a test run starts over a hundred. The server has run nothing in
TensorFlow when it forks, so that a child starts its devices, threads and connections like a new process.

A second server has imported this package and pytest as well, for programs that import this package in any case: other
ones must find Keras as it is without our hooks.

`tests/forked.py` replaces ``python``: it sends its arguments, environment and standard streams, and exits like the
program. A program whose client is gone is killed, with everything that it started. The server ends with its parent
process, whose death it notices by the end of its standard input.
"""

from __future__ import annotations

import array
import contextlib
import gc
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import NamedTuple

import psutil

from tests import forked

#: The maximum size of a request: environments are long.
_LIMIT = 1 << 20


class _Request(NamedTuple):
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]


def main(path: str) -> None:
    """Serves until standard input ends. In a child, it also returns after it has run the child's program."""
    import keras  # noqa: F401
    import tensorflow as tf  # noqa: F401

    own = path
    if os.fork() == 0:
        import pytest  # noqa: F401

        import keras_ext  # noqa: F401
        import strategies.horovod
        import strategies.mirrored
        import strategies.multi_worker_mirrored  # noqa: F401

        own = path + forked.WITH_PACKAGE
    # So that garbage collection in children does not write to the pages that they share with the server.
    gc.collect()
    gc.freeze()
    request = _served(own)
    if request is not None:
        _run(request)
    elif own == path:
        shutil.rmtree(Path(path).parent, ignore_errors=True)


def _served(path: str) -> _Request | None:
    """Forks for each client. Returns the request in a child, and None in the server, when it should end."""
    clients: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen(64)
        # Clients look for the path: it exists only when they can connect to it.
        Path(f"{path}.new").rename(path)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector.register(server, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for pid in clients:
                        _kill(pid)
                    return None
                if key.fileobj is server:
                    connection = server.accept()[0]
                    request = _received(connection)
                    if request is None:
                        connection.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for each in (connection, woken, wakes, *clients.values()):
                            each.close()
                        return request
                    for stream in request.streams:
                        os.close(stream)
                    clients[pid] = connection
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.fileobj is woken:
                    woken.recv(4096)
                    _tell_ends(clients, selector)
                elif key.data in clients:
                    # Signals that the client has received, or the end of the client.
                    numbers = clients[key.data].recv(64)
                    for number in numbers:
                        os.kill(key.data, number)
                    if not numbers:
                        _kill(key.data)
                        selector.unregister(clients[key.data])
                        clients.pop(key.data).close()


def _received(connection: socket.socket) -> _Request | None:
    """Reads a request: its length, its text, and three streams."""
    streams = array.array("i")
    length, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * streams.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            streams.frombytes(data)
    size = int.from_bytes(length, "big")
    if not 0 < size < _LIMIT or len(streams) != 3:
        return None
    text = b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            return None
        text += part
    arguments, folder, environment = json.loads(text)
    return _Request(arguments, folder, environment, list(streams))


def _tell_ends(clients: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Reaps children, and sends each client the exit status of its child."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        client = clients.pop(pid, None)
        if client is not None:
            with contextlib.suppress(OSError):
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            selector.unregister(client)
            client.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def _run(request: _Request) -> None:
    """Becomes the requested process, and runs its program as ``python`` would."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    _search(os.environ.get("PYTHONPATH", ""), request.environment.get("PYTHONPATH", ""))
    os.environ.clear()
    os.environ.update(request.environment)
    if "KERAS_HOME" in request.environment:
        from keras.src.backend import config

        # Keras reads the variable only on import.
        config._KERAS_DIR = request.environment["KERAS_HOME"]
    # The interpreter has opened the server's streams at its start.
    sys.stdin = os.fdopen(0, closefd=False)
    if request.environment.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    else:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    arguments = list(request.arguments)
    first = arguments.pop(0)
    if first == "-c":
        code = arguments.pop(0)
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, "")
        _run_as_main(compile(code, "<string>", "exec"))
    elif first == "-m":
        name = arguments.pop(0)
        sys.argv = [name, *arguments]
        sys.path.insert(0, request.folder)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *arguments]
        sys.path.insert(0, str(Path(first).absolute().parent))
        _run_as_main(compile(Path(first).read_bytes(), first, "exec"), __file__=first)


def _search(before: str, after: str) -> None:
    """Replaces the folders of one PYTHONPATH, and the server's folder, by those of another."""
    left = [each for each in sys.path[1:] if each not in before.split(os.pathsep)]
    sys.path[:] = [each for each in after.split(os.pathsep) if each] + left


def _run_as_main(code: types.CodeType, **names: str) -> None:
    """Runs code as the main module, which stays registered, so that its classes can be pickled."""
    program = types.ModuleType("__main__")
    vars(program).update(names)
    sys.modules["__main__"] = program
    exec(code, vars(program))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception:
        # As the interpreter would print it, but to the streams of the child.
        traceback.print_exc()
        sys.exit(1)
