"""Replaces ``python``: runs a program in a child of `tests/fork_server.py`, which has already imported TensorFlow.

    python -I -S tests/forked.py PROGRAM ARGUMENTS...

It exits like the program, and forwards signals. It becomes a new interpreter instead if there is no server, or if the
server was started with other values of the variables that TensorFlow and Keras read on import.
"""

# Few imports: each start of a program pays for them.
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping

SERVER = "KERAS_STRATEGIES_TESTS_FORK_SERVER"
#: The end of the path of the second server.
WITH_PACKAGE = ".package"
_PACKAGE_IMPORTS = re.compile(r"^(import|from) (strategies|keras_ext|tests\.strategies|tests\.graphs)\b", re.MULTILINE)
#: Prefixes of variables that are read on import; those in the second list are read later, or set by the server.
_AT_IMPORT = ("TF_", "KERAS_", "CUDA_", "XLA_", "PYTHON", "LD_", "GRPC_", "OMP_", "MALLOC_")
_LATER = (
    *("TF_CONFIG", "TF_NUM_", "TF_CPP_", "OMP_NUM_"),
    *("KERAS_HOME", "KERAS_STRATEGIES_", "PYTHONPATH", "PYTHONUNBUFFERED"),
)


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of an environment that must equal the server's."""
    return {k: v for k, v in environment.items() if k.startswith(_AT_IMPORT) and not k.startswith(_LATER)}


def _imports_package(arguments: list[str]) -> bool:
    """Returns True if the program imports this package when it starts."""
    if arguments[0] == "-c":
        return _PACKAGE_IMPORTS.search(arguments[1]) is not None
    if not arguments[0].endswith(".py"):
        return False
    try:
        with open(arguments[0]) as file:  # noqa: PTH123
            return _PACKAGE_IMPORTS.search(file.read()) is not None
    except OSError:
        return False


def main() -> None:
    """Runs the program that the arguments name, and exits like it."""
    arguments = sys.argv[1:]
    path = os.environ.get(SERVER)
    if path is None or (arguments[0].startswith("-") and arguments[0] not in ("-c", "-m")):
        os.execv(sys.executable, [sys.executable, *arguments])
    with open(path + ".environment") as file:  # noqa: PTH123
        if json.load(file) != read_at_import(os.environ):
            os.execv(sys.executable, [sys.executable, *arguments])
    server = socket.socket(socket.AF_UNIX)
    if _imports_package(arguments) and os.path.exists(path + WITH_PACKAGE):  # noqa: PTH110
        path += WITH_PACKAGE
    server.connect(path)
    request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    said = b""
    while part := server.recv(64):
        said += part
    # If the server sent nothing, it is gone, and the program with it.
    code = int(said or -signal.SIGKILL)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
