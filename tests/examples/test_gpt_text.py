"""Text and tokenizers of the language model: every file is read correctly, or refused by name and reason."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from common.options import OptionError
from gpt import text, tokens

PIECE = "Ein Würfel ist ein W6; wörtlich: „six“.\n\n\tTwo  spaces\r\n" * 40


def test_own_pages(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        own = text.load()
    assert len(own.documents) == len(text.OWN_PAGES)
    # With much more, the first command of the page would take longer than the page says.
    assert 30_000 < own.num_bytes < 48_000
    assert own.documents[0].startswith(b"# Tensor parallelism")
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"data: this repository's own pages; {len(text.OWN_PAGES)} document(s), {own.num_bytes} bytes"


def test_a_file_with_marks(tmp_path: Path) -> None:
    path = tmp_path / "stories"
    path.write_bytes(b"<|endoftext|>one<|endoftext|>two\n<|endoftext|><|endoftext|>")
    assert text.load(str(path)).documents == (b"one", b"two\n")


def test_a_binary_file_is_text_to_bytes(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(bytes(range(256)) * 3)
    loaded = text.load(str(path))
    tokenizer = tokens.make_tokenizer("bytes", loaded, 1000, tmp_path)
    encoded = tokenizer.encode(loaded.documents[0])
    assert (encoded.min(), encoded.max(), len(encoded)) == (0, 255, 768)
    assert tokenizer.decode(encoded.tolist()) == loaded.documents[0]
    assert tokenizer.decode([tokenizer.separator, 65]) == b"\n\nA"
    with pytest.raises(OptionError, match=r"program: not UTF-8 \(.* at byte 128 .*\).* Take --tokenizer=bytes\.$"):
        tokens.make_tokenizer("bpe", loaded, 300, tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "there is no text in it"),
        (b"<|endoftext|>" * 2, "there is no text in it"),
    ],
)
def test_files_that_will_not_do(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        text.load(str(path))
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert "\n" not in str(caught.value)
    assert "--data_file" in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot be read \(Is a directory\)"):
        text.load(str(tmp_path))


def as_text(piece: str) -> text.Text:
    return text.Text((piece.encode(), b"and another"), "a test")


def test_byte_pairs_lose_nothing_and_are_found_again() -> None:
    model = tokens.train_bpe(as_text(PIECE), 340)
    assert tokens.train_bpe(as_text(PIECE), 340) == model
    tokenizer = tokens.BpeTokenizer(model)
    assert tokenizer.num_tokens == 340
    # Characters that were not in the training text are encoded as bytes.
    for other in (PIECE, " \n\n  x\t\0é😀 ", "<|endoftext|>", ""):
        encoded = tokenizer.encode(other.encode())
        assert encoded.dtype == np.int32
        assert tokenizer.decode(encoded.tolist()) == other.encode()
    assert len(tokenizer.encode(PIECE.encode())) < len(PIECE.encode()) / 3
    both = [*tokenizer.encode(b"one"), tokenizer.separator, *tokenizer.encode(b"two")]
    assert tokenizer.decode(both) == b"one\n\ntwo"


def test_the_tokenizer_of_a_run_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = tokens.make_tokenizer("bpe", as_text(PIECE), 340, folder)
    assert [path.name for path in folder.iterdir()] == [tokens.TOKENIZER_FILE]
    # Another text: the tokenizer in the folder stays.
    second = tokens.make_tokenizer("bpe", as_text("Something else altogether. " * 50), 340, folder)
    assert first.encode(b"wortlich").tolist() == second.encode(b"wortlich").tolist()
    with pytest.raises(OptionError, match=r"tokenizer\.model: .* has 340 tokens, expected --vocab_size=350.*--run_dir"):
        tokens.make_tokenizer("bpe", as_text(PIECE), 350, folder)
    (folder / tokens.TOKENIZER_FILE).write_bytes(b"half a f")
    with pytest.raises(OptionError, match=r"tokenizer\.model: cannot be read \(.* damaged\)\. Name another folder"):
        tokens.make_tokenizer("bpe", as_text(PIECE), 340, folder)


@pytest.mark.parametrize(
    ("num_tokens", "reason"), [(100, "smaller than required_chars"), (9000, "too high .* <= [0-9]+")]
)
def test_sizes_that_do_not_fit_the_text(num_tokens: int, reason: str) -> None:
    with pytest.raises(OptionError, match=rf"^--vocab_size={num_tokens} does not fit a test: .*{reason}") as caught:
        tokens.train_bpe(as_text(PIECE), num_tokens)
    assert "\n" not in str(caught.value)


def test_sentencepiece_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(OptionError, match="pip install sentencepiece"):
        tokens.make_tokenizer("bpe", as_text(PIECE), 340, None)
    assert tokens.make_tokenizer("bytes", as_text(PIECE), 340, None).num_tokens == 257
