"""Tokenizers: bytes, or byte pairs with the package `sentencepiece`."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from common.files import write_whole

from gpt.text import DataError, Text

Tokens = npt.NDArray[np.int32]

# File name of a trained tokenizer in the run folder.
TOKENIZER_FILE = "tokenizer.model"
_LINE = "\n"


class Tokenizer(Protocol):
    """The interface of a tokenizer.

    Attributes:
        num_tokens: tokens are 0 to `num_tokens` - 1.
        separator: the token between two documents.
    """

    num_tokens: int
    separator: int

    def encode(self, text: bytes) -> Tokens:
        """Returns the tokens of a text, of shape (count,)."""

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the text of tokens; a separator becomes an empty line."""


class ByteTokenizer:
    """A tokenizer whose tokens are bytes, for any file."""

    num_tokens = 257
    separator = 256

    def encode(self, text: bytes) -> Tokens:
        """Returns the values of the bytes."""
        return np.frombuffer(text, np.uint8).astype(np.int32)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the bytes with these values."""
        return b"".join(b"\n\n" if token == self.separator else bytes([token]) for token in tokens)


class BpeTokenizer:
    """A byte-pair tokenizer (Sennrich et al., arXiv:1508.07909) of sentencepiece, for UTF-8, lossless.

    Args:
        model: the model file that `train_bpe` returns.

    Raises:
        DataError: sentencepiece is not installed, or cannot read the model.
    """

    def __init__(self, model: bytes) -> None:
        try:
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise DataError("it is not a tokenizer of sentencepiece, or is damaged") from error
        self.num_tokens = int(self._processor.piece_size())
        self.separator = int(self._processor.eos_id())

    def encode(self, text: bytes) -> Tokens:
        """Returns the tokens of UTF-8 text."""
        return np.asarray(self._processor.encode(text.decode()), np.int32)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the UTF-8 text of tokens; an incomplete character becomes U+FFFD."""
        parts: list[list[int]] = [[]]
        for token in tokens:
            if token == self.separator:
                parts.append([])
            else:
                parts[-1].append(int(token))
        return b"\n\n".join(self._processor.decode(part).encode() for part in parts)


def make_tokenizer(kind: str, text: Text, num_tokens: int, folder: Path | None) -> Tokenizer:
    """Returns the tokenizer of a kind.

    Args:
        kind: `"bytes"` or `"bpe"`.
        text: the text on which a "bpe" tokenizer is trained, unless the folder has one already.
        num_tokens: number of tokens for "bpe"; ignored for "bytes".
        folder: the run folder. A trained tokenizer is kept in it, so that a resumed run uses the same one.

    Raises:
        DataError: for "bpe": sentencepiece is not installed, the text is not UTF-8 or too small for `num_tokens`, or
            the tokenizer in the folder is damaged or of another size.
    """
    if kind == "bytes":
        return ByteTokenizer()
    check_utf8(text, "bpe")
    path = None if folder is None else folder / TOKENIZER_FILE
    if path is not None and path.is_file():
        return _kept(path, num_tokens)
    model = train_bpe(text, num_tokens)
    if path is not None:
        _keep(path, model)
    return BpeTokenizer(model)


def check_utf8(text: Text, kind: str) -> None:
    """Checks that a text is UTF-8, which a kind of tokenizer needs.

    Raises:
        DataError: it is not.
    """
    for document in text.documents:
        try:
            document.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{text.source}: not UTF-8 ({error.reason} at byte {error.start} of a document), which "
                f"--tokenizer={kind} needs. Take --tokenizer=bytes."
            ) from error


def train_bpe(text: Text, num_tokens: int) -> bytes:
    """Trains a tokenizer with `num_tokens` tokens, and returns the model file of sentencepiece; deterministic.

    Raises:
        DataError: sentencepiece is not installed, or the text is too small for `num_tokens`.
    """
    package = _sentencepiece()
    model = io.BytesIO()
    try:
        package.SentencePieceTrainer.train(
            sentence_iterator=(line for document in text.documents for line in document.decode().split(_LINE)),
            model_writer=model,
            model_type="bpe",
            vocab_size=num_tokens,
            # Lossless: text without a matching token is encoded as bytes.
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            user_defined_symbols=[_LINE],
            max_sentence_length=1 << 24,
            unk_id=0,
            eos_id=1,
            bos_id=-1,
            pad_id=-1,
            # With one thread, so that all processes of a job get the same result.
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        # "... Vocabulary size too high (9000). Please set it to a value <= 3809."
        reason = str(error).rpartition("]")[2].strip().rstrip(".")
        raise DataError(f"--vocab_size={num_tokens} does not fit {text.source}: {reason}.") from error
    return model.getvalue()


def _kept(path: Path, num_tokens: int) -> Tokenizer:
    try:
        kept = BpeTokenizer(path.read_bytes())
    except (OSError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read ({reason}). Name another folder in --run_dir.") from error
    if kept.num_tokens != num_tokens:
        raise DataError(
            f"{path}: the run in this folder has {kept.num_tokens} tokens, expected --vocab_size={num_tokens}. Use the "
            "same, or choose another --run_dir."
        )
    return kept


def _keep(path: Path, model: bytes) -> None:
    """Writes the file atomically; all processes do so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, model)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}). Name another folder in --run_dir.") from error


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise DataError("--tokenizer=bpe needs sentencepiece. Run `pip install sentencepiece`.") from error
    return sentencepiece
