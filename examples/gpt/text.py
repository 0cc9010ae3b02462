"""The training text: a given file, or this repository's own pages. Pure Python, no network.

All problems are reported as a `DataError` with the file, the reason and the remedy.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from common.options import OptionError

# The separator of documents in a file, as in many published collections of stories and web pages.
DOCUMENT_MARK = b"<|endoftext|>"

# The default training text: three guides for users of the library, about 37,000 bytes. The list is fixed, so that a new
# page elsewhere does not change it.
OWN_PAGES = tuple(f"docs/guides/{name}.md" for name in ("tensor_parallel", "pipelines", "experts"))
_ROOT = Path(__file__).resolve().parents[2]

_log = logging.getLogger(__name__)


class DataError(OptionError):
    """An unsuitable file; the message is one line for the user."""


@dataclass(frozen=True)
class Text:
    """Non-empty documents as bytes, and a description of their source."""

    documents: tuple[bytes, ...]
    source: str

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all documents."""
        return sum(map(len, self.documents))


def load(data_file: str | None = None) -> Text:
    """Returns the documents in a file, by default the library's own pages; one log line names the source.

    Args:
        data_file: any file. It is read as bytes; `<|endoftext|>` ends a document.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    if data_file is None:
        text = Text(tuple(_read(_ROOT / page) for page in OWN_PAGES), "this repository's own pages")
    else:
        path = Path(data_file)
        text = Text(tuple(filter(None, _read(path).split(DOCUMENT_MARK))), str(path))
    if not text.num_bytes:
        raise DataError(f"{text.source}: there is no text in it. Name a file with some in --data_file.")
    _log.info("data: %s; %d document(s), %d bytes", text.source, len(text.documents), text.num_bytes)
    return text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Name another file in --data_file.") from error
