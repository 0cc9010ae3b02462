"""Saves a model into sharded checkpoints, in the background if wanted: training goes on while the files are written.

Each rank holds what it writes as it is when the save begins, so the files have what the step had. On a GPU that is a
copy in the host's memory. On a CPU the tensors are held, and the next update of a variable that is not written yet
takes new memory: in both cases at most the rank's part of the model and its optimizer, once. A save waits for the one
before. There every rank learns whether one of them could not write, and all raise the error.

Its contract is tested in ``tests/strategies/processes/sharded_checkpoints.py``.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from strategies.saving.sharded_files import RankFile, file_of, finish
from strategies.saving.together import rank_of, texts_of_job
from strategies.saving.write_items import WriteItem, write_items

#: The time that a new folder may take to appear on all machines that share it.
APPEARS_SECONDS = 60.0
# Another process makes the folder, on a file system that may show it late: there is no event to wait for.
_POLL_SECONDS = 0.005


class ShardedSaves:
    """Saves a model again and again, each time into another folder.

    Args:
        background: True to write while training goes on; False to wait for the files.
    """

    def __init__(self, background: bool) -> None:
        self._background = background
        self._running: _Running | None = None
        # The tensors of the last save, and their write items.
        self._named: Mapping[str, Any] | None = None
        self._items: list[WriteItem] = []

    def save(
        self,
        model: Any,
        folder: Path,
        values: Callable[[], Mapping[str, Any]],
        begin: Callable[[], None],
        complete: Callable[[], None],
    ) -> None:
        """Saves tensors; all processes call this. The checkpoint is complete when the files of all ranks are.

        Args:
            model: the model, whose strategy joins the processes.
            folder: the folder of this checkpoint's files, which all processes share.
            values: returns the tensors: variables, split weights, or arrays that all processes have. The same mapping
                as before stands for the same variables.
            begin: runs on rank 0, first. It makes the folder.
            complete: runs on rank 0, in the background, when all files are complete.

        Raises:
            ValueError: this save, or the one before, failed on some rank; the same on all ranks, with their errors.
        """
        self.wait(model)
        rank, num_ranks = rank_of(model)
        token, text = secrets.token_hex(8), ""
        if rank == 0:
            try:
                begin()
                (folder / token).touch()
            except OSError as error:
                text = _described(error)
        [(token, failed), *_] = [each.split("\n", 1) for each in texts_of_job(model, f"{token}\n{text}")]
        _raise_if_any(folder, [failed])
        file: RankFile | str
        try:
            named = values()
            if named is not self._named:
                self._named, self._items = named, write_items(named, num_ranks)
            file = RankFile.from_items(file_of(rank, num_ranks), named, self._items, rank)
        except (OSError, ValueError) as error:
            # The other ranks learn of it where they wait for the files.
            file = _described(error)
        self._running = _Running(folder, token, file, num_ranks, complete if rank == 0 else None)
        if not self._background:
            self.wait(model)

    def wait(self, model: Any) -> None:
        """Waits until the last save is complete; all processes call this.

        Raises:
            ValueError: it failed on some rank; the same on all ranks, with their errors.
        """
        running, self._running = self._running, None
        if running is None:
            return
        running.written.wait()
        texts = texts_of_job(model, running.text)
        if any(texts):
            running.is_given_up.set()
            running.thread.join()
            _raise_if_any(running.folder, texts)
        running.thread.join()
        _raise_if_any(running.folder, texts_of_job(model, running.text))


class _Running:
    """A save whose files are being written by a thread.

    Args:
        folder: the folder of the files.
        token: the name of a file that rank 0 has made in it.
        file: what this rank writes, or the error because of which it has nothing to write.
        num_ranks: the number of ranks.
        complete: on rank 0, runs when the files of all ranks are complete.
    """

    def __init__(
        self, folder: Path, token: str, file: RankFile | str, num_ranks: int, complete: Callable[[], None] | None
    ) -> None:
        self.folder = folder
        #: Set when this rank's file is written, or could not be.
        self.written = threading.Event()
        #: Set when it is known that another rank's file will not appear.
        self.is_given_up = threading.Event()
        #: The error, or "".
        self.text = ""
        self._token, self._file, self._num_ranks, self._complete = token, file, num_ranks, complete
        # A process that ends does not wait for it: what is incomplete does not count.
        self.thread = threading.Thread(target=self._run, name=f"save {folder.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            if isinstance(self._file, str):
                self.text = self._file
                return
            self._await_folder()
            self._file.write(self.folder)
            self.written.set()
            if self._complete is not None:
                finish(self.folder, self._num_ranks, self.is_given_up.is_set)
                (self.folder / self._token).unlink(missing_ok=True)
                self._complete()
        # Any error is to reach all ranks, and none may be left waiting.
        except Exception as error:
            self.text = _described(error)
        finally:
            self.written.set()

    def _await_folder(self) -> None:
        """Waits for the folder of rank 0 to appear here.

        Raises:
            OSError: it does not.
        """
        end = time.monotonic() + APPEARS_SECONDS
        while not (self.folder / self._token).exists():
            if time.monotonic() > end:
                raise OSError(
                    f"{self.folder}, which rank 0 has made, does not appear here within {APPEARS_SECONDS:.0f} s. "
                    "Sharded checkpoints need a folder that all processes share"
                )
            time.sleep(_POLL_SECONDS)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _raise_if_any(folder: Path, texts: list[str]) -> None:
    found = {rank: text for rank, text in enumerate(texts) if text}
    if found:
        raise ValueError(
            f"The checkpoint {folder} could not be saved; older ones are kept. "
            + " ".join(f"Rank {rank}: {text}." for rank, text in found.items())
        )
