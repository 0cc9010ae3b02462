"""A cache file for the index, whose construction takes seconds to minutes on a large set."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from common.files import write_whole

from imagenet.index import Index

FOLDER = ".imagenet_index"

_VERSION = 1
#: Modification times have a granularity: a file changed this recently may change again unnoticed.
_SETTLED_SECONDS = 2.0

_log = logging.getLogger(__name__)


def cached(root: Path, name: str, request: object, sources: Iterable[Path], make: Callable[[], Index]) -> Index:
    """Returns the index from its cache file, or makes it and writes the file.

    The file is `ROOT/.imagenet_index/NAME.npz` or, if that cannot be written, one in the user's cache folder.

    Args:
        root: the data folder.
        name: name of the split.
        request: what else the index depends on; serializable as JSON.
        sources: the folders and files that the index is made of. It is valid while these keep their sizes and times.
        make: makes the index.
    """
    folders = _folders(root)
    files = [folder / f"{name}.npz" for folder in folders]
    # Make it before taking the fingerprint: the data folder may be one of the sources.
    _make_folder(folders[0])
    # Take it before making the index: changes in the meantime are noticed the next time.
    stats = [(str(path.relative_to(root)), path.stat()) for path in sources]
    seen = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    key = hashlib.sha256(json.dumps([_VERSION, request, seen]).encode()).hexdigest()
    settled = max((stat.st_mtime for _, stat in stats), default=0.0) < time.time() - _SETTLED_SECONDS
    for file in files:
        index = _load(file, key)
        if index is not None:
            return index
    index = make()
    if settled:
        for file in files:
            if _save(file, key, index):
                break
    return index


def _folders(root: Path) -> list[Path]:
    """Returns the folders for the cache file, in order of preference."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    return [root / FOLDER, home / "keras-strategies" / "imagenet" / digest]


def _make_folder(folder: Path) -> None:
    """Makes the cache folder in the data folder, if possible.

    The data folder keeps its modification time; otherwise its images would seem to have changed just now.
    """
    with contextlib.suppress(OSError):
        before = folder.parent.stat()
        folder.mkdir()
        os.utime(folder.parent, ns=(before.st_atime_ns, before.st_mtime_ns))


def _load(file: Path, key: str) -> Index | None:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            if str(archive["key"]) != key:
                return None
            names = archive["class_names"].tobytes().decode()
            return Index(
                archive["names"],
                archive["name_ends"],
                archive["files"],
                archive["offsets"],
                archive["lengths"],
                archive["labels"],
                tuple(json.loads(names)),
            )
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
        # Missing, of another version, or damaged: it is made again.
        return None


def _save(file: Path, key: str, index: Index) -> bool:
    """Writes the index to a file, atomically; returns True on success."""
    content = io.BytesIO()
    np.savez(
        content,
        key=np.array(key),
        class_names=np.frombuffer(json.dumps(index.classes).encode(), np.uint8),
        names=index.names,
        name_ends=index.name_ends,
        files=index.files,
        offsets=index.offsets,
        lengths=index.lengths,
        labels=index.labels,
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content.getvalue())
    except OSError as error:
        _log.info("the index cannot be cached in %s (%s)", file, error.strerror)
        return False
    return True
