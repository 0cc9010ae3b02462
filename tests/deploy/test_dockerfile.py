"""The Dockerfiles of `deploy/`: what they copy is in the build context, and both images take the same steps."""

from pathlib import Path, PurePosixPath

import pytest

from tests.deploy.dockerfile import Instruction, context_files, parse

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "deploy").glob("*/Dockerfile*"))
CPU, CUDA, SAGEMAKER = DOCKERFILES


def test_instructions() -> None:
    text = '# comment\nFROM debian:x\n\nENV A=1 B=\'two words\'\nRUN one \\\n # between\n && two\nCMD ["a b", "c"]\n'
    assert parse(text) == [
        Instruction("FROM", "debian:x", 2),
        Instruction("ENV", "A=1 B='two words'", 4),
        Instruction("RUN", "one && two", 5),
        Instruction("CMD", '["a b", "c"]', 8),
    ]
    assert parse(text)[1].variables == {"A": "1", "B": "two words"}
    assert parse(text)[3].words == ["a b", "c"]


@pytest.mark.parametrize(
    "text", ["", "RUN a", "FROM a\nFROM b", "FROM a\nADD b c", "FROM a\nCOPY --from=b c d", "FROM a\nRUN <<EOF\nb\nEOF"]
)
def test_what_is_not_supported(text: str) -> None:
    with pytest.raises(ValueError, match=r"FROM|expected one of"):
        parse(text)


def test_the_build_context(tmp_path: Path) -> None:
    for name in ("kept/a.py", "kept/__pycache__/a.pyc", "left/b.py", "c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    files = context_files(tmp_path, "# comment\n*\n!kept\n!c.txt\n**/__pycache__\n")
    assert files == [PurePosixPath("c.txt"), PurePosixPath("kept/a.py")]


@pytest.mark.parametrize("path", [CPU, CUDA])
def test_what_is_copied_is_in_the_context(path: Path) -> None:
    files = context_files(ROOT, (ROOT / ".dockerignore").read_text())
    tops = {file.parts[0] for file in files}
    copied = [word for each in parse(path.read_text()) if each.name == "COPY" for word in each.words[:-1]]
    assert sorted(copied) == sorted(tops)
    # The package needs these at run time, or pip when it builds.
    assert {PurePosixPath("strategies/monitoring/page.html"), PurePosixPath("strategies/__init__.pyi")} <= set(files)


def test_the_image_for_gpus_takes_the_steps_of_the_one_for_cpus() -> None:
    cpu, cuda = (parse(path.read_text()) for path in (CPU, CUDA))
    assert [each.name for each in cpu if each.name != "ENV"] == [each.name for each in cuda if each.name != "ENV"]
    for name in ("COPY", "WORKDIR", "CMD"):
        assert [each.text for each in cpu if each.name == name] == [each.text for each in cuda if each.name == name]
    assert cpu[-3].text == cuda[-3].text
    assert "NOT BUILT" in CUDA.read_text()


def test_the_image_for_sagemaker_is_made_from_the_one_for_cpus() -> None:
    tag = parse(SAGEMAKER.read_text())[0].text
    assert f"--tag {tag} ." in CPU.read_text()
