"""A small synthetic set of JPEG files with learnable classes and irregular files, to run without ImageNet."""

from __future__ import annotations

import colorsys
import contextlib
import fcntl
import io
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from imagenet.errors import DataError

#: Kinds of irregular files, as found in large sets. The last two are not images.
ODD_KINDS = ("greyscale", "cmyk", "png", "truncated", "empty", "text")
NUM_UNUSABLE_KINDS = 2

_REQUEST = "synthetic.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """The parameters of a set; the same request gives the same pixels.

    Attributes:
        num_classes: classes, each with a folder in `train` and in `val`.
        images_per_class: files in each folder of `train`.
        val_images_per_class: files in each folder of `val`.
        min_side: shortest side of an image, pixels.
        max_side: longest side of an image, pixels.
        noise: standard deviation of the noise on each pixel, levels. It also affects the size of the files.
        odd_files: whether `train` and `val` each have one file of each of `ODD_KINDS` in place of images.
        seed: random seed.
    """

    num_classes: int = 10
    images_per_class: int = 100
    val_images_per_class: int = 20
    min_side: int = 96
    max_side: int = 160
    noise: float = 12.0
    odd_files: bool = True
    seed: int = 0


def make_synthetic(folder: str | os.PathLike[str], request: Request | None = None) -> Path:
    """Generates a set in `folder`, in class folders, unless it exists; about 300 images a second.

    Safe to call from many processes at once: one makes the set, the others wait for it. The folder is complete or does
    not exist, however the process ends.

    Args:
        folder: the folder to make. Its parent folder must be writable.
        request: the set to make; the default is 1,200 images of 10 classes.

    Returns:
        The folder.

    Raises:
        DataError: the folder exists and holds something else, or cannot be made; or Pillow is not installed.
    """
    request = request or Request()
    _check(request)
    target = Path(folder).absolute()
    if _exists(target, request):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target) as is_alone:
            if not _exists(target, request):
                _make(target, request, is_alone)
    except OSError as error:
        raise DataError(f"{target}: cannot be made ({error.strerror}). Name a folder that can be written.") from error
    return target


def _check(request: Request) -> None:
    fewest = min(request.images_per_class, request.val_images_per_class)
    if request.num_classes < 1 or fewest < 1 or not 1 <= request.min_side <= request.max_side:
        raise DataError(f"Expected at least one class, one image of each, and sides from 1 pixel. Received: {request}.")
    if request.odd_files and request.num_classes * fewest < 2 * len(ODD_KINDS):
        raise DataError(
            f"Expected at least {2 * len(ODD_KINDS)} images in each split, of which {len(ODD_KINDS)} are odd files. "
            f"Ask for more, or for odd_files=False. Received: {request}."
        )


def _exists(target: Path, request: Request) -> bool:
    """Returns True if `target` contains the requested set.

    Raises:
        DataError: `target` contains something else.
    """
    if not target.exists():
        return False
    try:
        made = json.loads((target / _REQUEST).read_text())
    except (OSError, ValueError):
        made = None
    if made != asdict(request):
        what = "no synthetic set" if made is None else f"a synthetic set of another kind, {made}"
        raise DataError(f"{target}: holds {what}. Delete it, or name another folder for {asdict(request)}.")
    return True


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[bool]:
    """Context manager: locks the making of the folder; yields True if locked. The end of the process releases it."""
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            is_alone = True
        except OSError:
            # Continue without locks: several processes may then make the set, and the first one is kept.
            is_alone = False
        yield is_alone


def _make(target: Path, request: Request, is_alone: bool) -> None:
    """Makes the set next to `target`, and renames it when it is complete."""
    start = time.monotonic()
    prefix = f".{target.name}.making-"
    for left_over in target.parent.glob(f"{prefix}*") if is_alone else ():
        # Left by a killed process: a running one would hold the lock.
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        temporary.chmod(0o755)
        count = _write(temporary, request)
        (temporary / _REQUEST).write_text(json.dumps(asdict(request)))
        try:
            temporary.rename(target)
        except OSError:
            # On a file system without locks, another process may have been faster.
            if not _exists(target, request):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _log.info("data: made %d synthetic images in %s (%.1f s)", count, target, time.monotonic() - start)


def _write(folder: Path, request: Request) -> int:
    """Writes the files of both splits; returns their number."""
    count = 0
    for split, (name, per_class) in enumerate(
        (("train", request.images_per_class), ("val", request.val_images_per_class))
    ):
        odd = _odd_kinds(request, per_class)
        for label in range(request.num_classes):
            wnid = class_name(label)
            (folder / name / wnid).mkdir(parents=True)
            for number in range(per_class):
                random = np.random.default_rng([request.seed, split, label, number])
                image = picture(random, label, request)
                content = encoded(image, odd.get((label, number)))
                (folder / name / wnid / f"{wnid}_{number}.JPEG").write_bytes(content)
                count += 1
    return count


def class_name(label: int) -> str:
    """Returns a name in the format of a wnid; no synset has it."""
    return f"n9{label:07d}"


def _odd_kinds(request: Request, per_class: int) -> dict[tuple[int, int], str]:
    """Returns the kinds of the odd files by (label, number): the last files of the first classes."""
    if not request.odd_files:
        return {}
    classes = request.num_classes
    return {(i % classes, per_class - 1 - i // classes): kind for i, kind in enumerate(ODD_KINDS)}


def picture(random: np.random.Generator, label: int, request: Request) -> npt.NDArray[np.uint8]:
    """Returns an image of a class, uint8 `[height, width, 3]`: stripes whose colour and width depend on the class.

    Stripes have a random direction and phase, so that a crop and a mirror image are of the same class.
    """
    height, width = (int(side) for side in random.integers(request.min_side, request.max_side + 1, 2))
    # With the golden ratio, consecutive classes have distant colours, whatever their number.
    hue = label * 0.618034 + random.normal(0, 0.015)
    colours = [colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, 0.9) for turn, saturation in ((0, 0.8), (0.1, 0.35))]
    low, high = (255.0 * np.asarray(colour, np.float32) for colour in colours)
    angle, phase = random.uniform(0, 2 * np.pi, 2)
    frequency = 2 * np.pi * (2 + label % 3) / 48 * random.uniform(0.9, 1.1)
    rows, columns = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)[None, :]
    stripes = 0.5 + 0.5 * np.sin(frequency * (np.sin(angle) * rows + np.cos(angle) * columns) + phase)
    pixels = low + stripes[..., None].astype(np.float32) * (high - low)
    pixels *= np.float32(random.uniform(0.7, 1.0))
    pixels += request.noise * random.standard_normal((height, width, 1), np.float32)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encoded(image: npt.NDArray[np.uint8], odd: str | None = None) -> bytes:
    """Returns the bytes of the image as a JPEG file, or as an irregular file of a kind in `ODD_KINDS`."""
    if odd == "empty":
        return b""
    if odd == "text":
        return b"<!DOCTYPE html><title>404 Not Found</title>\n"
    # Imported here: only synthetic images need it.
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "Synthetic images need Pillow, which is not installed: pip install pillow. Or name a folder "
            "that holds images."
        ) from error
    picture = Image.fromarray(image)
    if odd in ("greyscale", "cmyk"):
        picture = picture.convert({"greyscale": "L", "cmyk": "CMYK"}[odd])
    stream = io.BytesIO()
    picture.save(stream, "PNG" if odd == "png" else "JPEG", **({} if odd == "png" else {"quality": 90}))
    content = stream.getvalue()
    return content[: len(content) * 3 // 4] if odd == "truncated" else content
