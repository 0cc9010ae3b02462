"""`python examples/gpt/main.py` as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.processes import Programs, python

MAIN = EXAMPLES / "gpt" / "main.py"
TEXT = "Peter Piper picked a peck of pickled peppers; where is the peck of pickled peppers? " * 40


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Returns the finished program."""
    return subprocess.run(
        python(*arguments), cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parity_all
@pytest.mark.timeout(300)
def test_two_processes_train_on_byte_pairs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    folder = tmp_path / "a run"
    flags = (
        "--strategy=multi_worker --tokenizer=bpe --vocab_size=300 --sequence_length=16 --batch_size=3 --units=16 "
        "--num_heads=2 --epochs=2 --steps_per_epoch=5 --sample_length=12 --prompt=Pet --verbose=2"
    )
    launch = ["-m", "strategies.launch", "--nproc-per-node", "2"]
    files = [f"--data_file={tmp_path / 'text'}", f"--run_dir={folder}"]
    with Programs(tmp_path, [[sys.executable, *launch, str(MAIN), *flags.split(), *files]]) as programs:
        codes = programs.wait(250)
        output = programs.output(20000)
    assert codes == [0], output
    assert re.search(r"\[0\] sample:\n\[0\] Pet", output)
    result = re.findall(r"result perplexity=(\S+) val_perplexity=(\S+) (bytes_per_token=.*)", output)
    assert len(result) == 1
    assert 1 < float(result[0][0]) < 320
    assert 1 < float(result[0][1]) < 320
    pairs = r"bytes_per_token=[23]\.\d+ tokens_per_second=\d+ waiting_input=\S+ waiting_communication=\S+"
    assert re.fullmatch(rf"{pairs} epochs=2 devices=2 seconds=\S+", result[0][2])
    assert output.count("Epoch 2/2") == 1
    assert (folder / "tokenizer.model").is_file()
    assert not list(folder.glob("tokenizer.model.*"))


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--data_file=nowhere", "error: nowhere: cannot be read (No such file or directory)"),
        ("--num_heads=3", "error: --units=128 must be a multiple of --num_heads=3"),
        ("--batch_size=0", "flag --batch_size=0"),
        ("--tokenizer=words", "flag --tokenizer=words"),
        ("words", "Expected flags only, received ['words']"),
    ],
)
def test_refuses_in_one_line(flag: str, reason: str) -> None:
    done = run([str(MAIN), flag])
    assert done.returncode != 0
    assert "result" not in done.stdout
    assert sum(reason in line for line in (done.stderr + done.stdout).splitlines()) == 1
    assert "Traceback" not in done.stderr
