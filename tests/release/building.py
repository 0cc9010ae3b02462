"""Builds from the files that are or would be committed, in a copy: caches and former builds cannot get in."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.processes import ROOT


def copy_sources(target: Path) -> None:
    """Copies the repository's files, those that git ignores excepted, to an empty folder."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        # A file that was removed, but not yet committed, is still listed.
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def build_wheel(folder: Path) -> Path:
    """Returns a wheel, built below `folder` with the setuptools of this environment: nothing is downloaded."""
    sources, made = folder / "sources", folder / "dist"
    sources.mkdir(parents=True)
    copy_sources(sources)
    run([sys.executable, "-m", "pip", "wheel", *_ALONE, "--wheel-dir", str(made), str(sources)])
    [wheel] = made.glob("*.whl")
    return wheel


def build_release(folder: Path, target: Path) -> list[Path]:
    """Returns sdist and wheel in `target`; the wheel is built from the sdist, with the newest setuptools.

    Files of one commit give the same bytes: all times are that of the commit.
    """
    sources = folder / "sources"
    sources.mkdir(parents=True)
    copy_sources(sources)
    time = git("log", "-1", "--format=%ct").strip()
    run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(sources)], {"SOURCE_DATE_EPOCH": time})
    [sdist] = (folder / "dist").glob("*.tar.gz")
    _set_times(sdist, int(time))
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder / "dist", target)
    return sorted(target.iterdir())


def _set_times(sdist: Path, time: int) -> None:
    """Writes an sdist again, with one time for all files and root as owner: setuptools takes those of the build."""
    part = sdist.with_suffix(".part")
    with (
        part.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.GNU_FORMAT) as written,
        tarfile.open(sdist) as read,
    ):
        for member in sorted(read.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.pax_headers = {}
            written.addfile(member, read.extractfile(member) if member.isfile() else None)
    part.replace(sdist)


_ALONE = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")


def git(*arguments: str) -> str:
    """Returns the output of a git command in the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Runs a command outside the repository.

    Raises:
        RuntimeError: it failed; the message has its output.
    """
    done = subprocess.run(
        command,
        cwd="/",
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
