"""The text of a file or of all files in a folder; by default code of this repository. Pure Python, no network."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from gpt.text import DOCUMENT_MARK, DataError, Text

_ROOT = Path(__file__).resolve().parents[2]

#: The default text: source code, unlike the pages that the small model has been trained on.
_OWN_CODE = _ROOT / "strategies" / "topology"

_log = logging.getLogger(__name__)


def load(path: str | None = None) -> Text:
    """Returns the documents of a text; one log line names the source, and the number of files that are left out.

    Args:
        path: a file, in which `<|endoftext|>` ends a document; or a folder, each file of which is a document. In a
            folder, names that begin with a dot and files that are not UTF-8 are left out. By default, this
            repository's code.

    Raises:
        DataError: a file that cannot be read or is not UTF-8, or no text.
    """
    source = _OWN_CODE if path is None else Path(path)
    num_left_out = 0
    documents: list[bytes] = []
    if source.is_dir():
        for file in _files(source):
            content = _read(file)
            if _is_utf8(content):
                documents.append(content)
            else:
                num_left_out += 1
    else:
        content = _read(source)
        if not _is_utf8(content):
            raise DataError(f"{source}: not UTF-8. Convert it, or name another file in --text.")
        documents += content.split(DOCUMENT_MARK)
    text = Text(tuple(filter(bytes.strip, documents)), str(source))
    if not text.num_bytes:
        raise DataError(f"{source}: there is no text in it. Name a file or a folder with some in --text.")
    left_out = f"; {num_left_out} file(s) left out, which are not UTF-8" if num_left_out else ""
    _log.info("text: %s; %d document(s), %d bytes%s", source, len(text.documents), text.num_bytes, left_out)
    return text


def _files(folder: Path) -> Iterator[Path]:
    # In the same order on every machine.
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Name a file or a folder in --text.") from error


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
