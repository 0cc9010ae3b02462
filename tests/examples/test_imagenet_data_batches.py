"""Images as the model gets them: the same rows for every first step, and odd files decoded or skipped."""

import io
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from imagenet import batches, crops, data, decoding
from imagenet.errors import DataError
from imagenet.skipped import MAX_NAMES, Skipped
from PIL import Image

from tests.logs import own_records

CAT, DOG = "n00000001", "n00000002"
HEIGHT, WIDTH = 60, 80

UInt8Array = npt.NDArray[np.uint8]
Batch = tuple[UInt8Array, npt.NDArray[np.int32], npt.NDArray[np.float32]]


def smooth(seed: int, height: int = HEIGHT, width: int = WIDTH) -> UInt8Array:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: UInt8Array, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    # No chroma subsampling: with it, colours at the edge of a crop depend on pixels outside.
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    Image.fromarray(image).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def write_files(root: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_records(root: Path, contents: list[tuple[bytes, int]], image: str, label: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(root / "train-00000-of-00001")) as writer:
        for content, value in contents:
            feature = {
                image: tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                label: tf.train.Feature(int64_list=tf.train.Int64List(value=[value])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    (root / "classes.txt").write_text(f"{CAT}\n{DOG}\n")
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with 23 valid images of two classes."""
    contents = {f"train/{(CAT, DOG)[i % 2]}/{i} ü.JPEG": encoded(smooth(i)) for i in range(23)}
    return write_files(tmp_path_factory.mktemp("sound") / "a b", contents)


def training(
    split: data.Split, *, batch_size: int = 5, seed: int = 3, first_step: int = 0, num_steps: int = 10
) -> list[Batch]:
    dataset = batches.training_batches(
        split, image_size=16, batch_size=batch_size, seed=seed, first_step=first_step, num_steps=num_steps
    )
    return list(dataset.as_numpy_iterator())


def evaluation(split: data.Split, batch_size: int = 100, image_size: int = 16) -> tuple[Batch, Skipped]:
    """Returns all rows as one batch, and the skipped images."""
    skipped = Skipped()
    dataset = batches.evaluation_batches(split, image_size=image_size, batch_size=batch_size, skipped=skipped)
    (batch,) = dataset.as_numpy_iterator()
    return batch, skipped


def assert_equal(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)


def test_form_and_length(folder: Path) -> None:
    split = data.open_split(folder, "train")
    assert batches.steps_per_epoch(split, 5) == 4
    dataset = batches.training_batches(split, image_size=16, batch_size=5, seed=0, first_step=7, num_steps=9)
    spec = (((5, 16, 16, 3), tf.uint8), ((5,), tf.int32), ((5,), tf.float32))
    assert tuple((tuple(s.shape), s.dtype) for s in dataset.element_spec) == spec
    assert int(dataset.cardinality()) == 9
    dataset = batches.evaluation_batches(split, image_size=16, batch_size=5)
    assert int(dataset.cardinality()) == 5
    sizes = [len(labels) for _, labels, _ in dataset.as_numpy_iterator()]
    assert sizes == [5, 5, 5, 5, 3]


def test_steps_are_the_same_wherever_a_run_begins(folder: Path) -> None:
    split = data.open_split(folder, "train")
    whole = training(split)
    # 4 steps per epoch: across the end of one epoch, and into the third.
    assert_equal(training(split, first_step=3, num_steps=6), whole[3:9])
    assert_equal(training(split), whole)
    assert any((one[0] != other[0]).any() for one, other in zip(training(split, seed=4), whole, strict=True))


def test_an_epoch_has_each_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    # Each image has one colour, which no crop and no flip changes.
    levels = np.arange(20) * 12
    contents = {f"train/{CAT}/{i:02d}.JPEG": encoded(np.full((40, 40, 3), levels[i], np.uint8)) for i in range(20)}
    split = data.open_split(write_files(tmp_path, contents), "train")
    seen = np.concatenate([images[:, 8, 8, 0] for images, _, _ in training(split, num_steps=8)]).reshape(2, 20)
    orders = [np.argmin(np.abs(epoch[:, None].astype(int) - levels), axis=1) for epoch in seen]
    assert [sorted(order.tolist()) for order in orders] == [list(range(20))] * 2
    assert (orders[0] != orders[1]).sum() > 10
    assert (orders[0] != np.arange(20)).sum() > 10


def test_fewer_rows_than_a_batch(folder: Path) -> None:
    split = data.open_split(folder, "train")
    assert batches.steps_per_epoch(split, 64) == 1
    for images, labels, weights in training(split, batch_size=64, num_steps=3):
        assert images.shape == (23, 16, 16, 3)
        assert np.bincount(labels).tolist() == [12, 11]
        assert weights.sum() == 23


def test_crops_and_flips_differ_from_row_to_row_and_epoch_to_epoch(tmp_path: Path) -> None:
    slope = np.broadcast_to(np.linspace(0, 255, 80, dtype=np.uint8)[None, :, None], (60, 80, 3))
    split = data.open_split(write_files(tmp_path, {f"train/{CAT}/{i}.JPEG": encoded(slope) for i in range(8)}), "train")
    images = np.concatenate([batch[0] for batch in training(split, batch_size=8, num_steps=25)]).astype(int)
    rising = images[:, 8, -1, 0] > images[:, 8, 0, 0]
    assert 60 < rising.sum() < 140
    assert len({image.tobytes() for image in images}) > 150


def boxes(height: int, width: int, count: int) -> npt.NDArray[np.int32]:
    @tf.function(autograph=False)
    def draw(draws: tf.Tensor) -> tf.Tensor:
        def box(one: tf.Tensor) -> tf.Tensor:
            return crops.random_box(tf.constant([height, width, 3]), *crops.drawn(one))

        return tf.map_fn(box, draws, fn_output_signature=tf.int32)

    draws = np.random.default_rng(0).random((count, crops.NUM_DRAWS), np.float32)
    # The largest float below 1.
    draws[0] = np.nextafter(np.float32(1), np.float32(0))
    draws[1] = 0
    return draw(draws).numpy()


@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (64, 64), (3000, 2), (2, 3000), (1, 1), (20, 300)]
)
def test_boxes_are_inside_and_as_the_recipe_has_them(height: int, width: int) -> None:
    top, left, rows, columns = boxes(height, width, 1500).T
    assert min(top.min(), left.min()) >= 0
    assert min(rows.min(), columns.min()) >= 1
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()
    if min(height, width) > 50:
        area, aspect = rows * columns / (height * width), columns / rows
        assert 0.075 < area.min() < 0.12
        assert 0.9 < area.max() <= 1
        assert 0.40 < area.mean() < 0.56
        # Sizes are whole pixels, so that the bounds are not exact.
        assert 0.72 < aspect.min() < 0.78
        assert 1.29 < aspect.max() < 1.39
        # Every position is as likely as its mirror image.
        assert abs((top - (height - rows - top)).mean()) < 0.03 * height
        assert abs((left - (width - columns - left)).mean()) < 0.03 * width
    elif min(height, width) == 20:
        # Too long for nearly every box: cut down, and the aspect ratio is still allowed.
        assert rows.max() == 20
        assert columns.max() <= 27


def reference(image: UInt8Array, size: int) -> npt.NDArray[np.float64]:
    """Returns the middle of an image, resized bilinearly, in numpy."""
    height, width = image.shape[:2]
    side = int(np.rint(0.875 * min(height, width)))
    top, left = (height - side + 1) // 2, (width - side + 1) // 2
    crop = image[top : top + side, left : left + side].astype(np.float64)
    centres = np.clip((np.arange(size) + 0.5) * side / size - 0.5, 0, side - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(side)[None, :]))
    return np.einsum("ij,jkc,lk->ilc", weights, crop, weights)


@pytest.mark.parametrize(("height", "width"), [(60, 80), (81, 50), (33, 33), (1, 1)])
def test_evaluation_takes_the_middle(tmp_path: Path, height: int, width: int) -> None:
    content = encoded(smooth(1, height, width))
    split = data.open_split(write_files(tmp_path, {f"train/{CAT}/a.JPEG": content}), "train")
    (images, _, _), _ = evaluation(split, image_size=24)
    expected = reference(np.asarray(Image.open(io.BytesIO(content))), 24)
    assert np.abs(images[0] - expected).max() <= 0.51


def odd_files() -> dict[str, bytes]:
    sound = encoded(smooth(5, 240, 320))
    header = sound[: sound.index(b"\xff\xc0")]
    return {
        "00 sound": sound,
        "01 greyscale": encoded(smooth(5, 240, 320), mode="L"),
        "02 cmyk": encoded(smooth(5, 240, 320), mode="CMYK"),
        "03 png": encoded(smooth(5, 240, 320), "PNG"),
        "04 png with transparency": encoded(smooth(5, 240, 320), "PNG", "RGBA"),
        "05 gif": encoded(smooth(5, 240, 320), "GIF", "P"),
        "06 bmp": encoded(smooth(5, 240, 320), "BMP"),
        "07 most of it": sound[: len(sound) * 4 // 5],
        "08 most of it, in CMYK": (cmyk := encoded(smooth(5, 240, 320), mode="CMYK"))[: len(cmyk) * 4 // 5],
        "09 with a tail": sound + b"camera" * 10,
        "10 too little of it": sound[: len(sound) * 3 // 10],
        "11 too little of it, in CMYK": cmyk[: len(cmyk) * 3 // 10],
        "12 header only": header,
        "13 empty": b"",
        "14 garbage": bytes(range(256)) * 20,
        "15 garbage in a JPEG": sound[:2] + bytes(range(256)) * 20,
        "16 text": b"<!DOCTYPE html><title>404</title>",
        "17 damaged tables": sound.replace(b"\xff\xc4\x00", b"\xff\xc4\xff", 1),
    }


NUM_USABLE = 10


def check_odd(batch: Batch, skipped: Skipped, names: list[str]) -> None:
    images, _, weights = batch
    assert weights.tolist() == [1.0] * NUM_USABLE + [0.0] * (len(names) - NUM_USABLE)
    assert not images[NUM_USABLE:].any()
    sound = images[0].astype(int)
    for image, name in zip(images[:NUM_USABLE], names, strict=False):
        expected = np.broadcast_to(sound @ [0.299, 0.587, 0.114], (3, 16, 16)).transpose(1, 2, 0)
        expected = expected if "greyscale" in name else sound
        # Truncated images have only the upper part.
        rows = slice(0, 9 if "most" in name else 16)
        assert np.abs(image[rows] - expected[rows]).mean() < (12 if "gif" in name else 4), name
    assert skipped.count == len(names) - NUM_USABLE
    assert len(skipped.names) == min(MAX_NAMES, skipped.count)


def test_odd_files_are_decoded_or_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contents = {f"train/{CAT}/{name}.JPEG": content for name, content in odd_files().items()}
    split = data.open_split(write_files(tmp_path, contents | {f"train/{CAT}/18 gone.JPEG": b"gone"}), "train")
    (tmp_path / f"train/{CAT}/18 gone.JPEG").unlink()
    (batch, skipped), names = evaluation(split), [*odd_files(), "18 gone"]
    check_odd(batch, skipped, names)
    assert (batch[1] == 0).all()
    lines = "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    for name, reason in [
        ("10 too little of it", "truncated, "),
        ("13 empty", "empty"),
        ("16 text", "no image, or damaged"),
        ("18 gone", "cannot be read (No such file or directory)"),
    ]:
        assert f"{name}.JPEG: {reason}" in lines
    # The second time they are not logged again.
    caplog.clear()
    dataset = batches.evaluation_batches(split, image_size=16, batch_size=7, skipped=skipped)
    assert sum(float(weights.sum()) for _, _, weights in dataset.as_numpy_iterator()) == NUM_USABLE
    assert skipped.count == len(names) - NUM_USABLE
    assert not own_records(caplog)


@pytest.mark.parametrize(
    ("image", "label", "first"), [("image/encoded", "image/class/label", 1), ("image", "label", 0)]
)
def test_odd_records_are_decoded_or_skipped(tmp_path: Path, image: str, label: str, first: int) -> None:
    sound = encoded(smooth(5, 240, 320))
    contents = [(content, first + i % 2) for i, content in enumerate(odd_files().values())]
    split = data.open_split(
        write_records(tmp_path, [*contents, (sound, first - 1), (sound, first + 2)], image, label), "train"
    )
    batch, skipped = evaluation(split)
    check_odd(batch, skipped, [*odd_files(), "no label", "a label too large"])
    assert batch[1][:NUM_USABLE].tolist() == [i % 2 for i in range(NUM_USABLE)]
    # A record's name has its offset; one with changed content is skipped, and the next not mistaken for it.
    places = {f"{split.path(0)}, record at byte {offset}" for offset in split.index.offsets[NUM_USABLE:]}
    assert places.issuperset(skipped.names)
    path = split.path(0)
    shard = bytearray(path.read_bytes())
    skipped = Skipped()
    dataset = batches.evaluation_batches(split, image_size=16, batch_size=100, skipped=skipped)
    shard[int(split.index.offsets[1]) + 1000] ^= 1
    path.write_bytes(shard)
    ((images, _, weights),) = dataset.as_numpy_iterator()
    assert weights[:3].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(images[[0, 2]], batch[0][[0, 2]])
    path.write_bytes(shard[:100])
    ((_, _, weights),) = dataset.as_numpy_iterator()
    assert weights.sum() == 0
    assert skipped.count == split.num_rows


def test_records_without_images_are_refused(tmp_path: Path) -> None:
    split = data.open_split(write_records(tmp_path, [(b"abc", 1)], "picture", "label"), "train")
    with pytest.raises(DataError, match=r"holds no image with a label\. Expected the features image/encoded and"):
        batches.evaluation_batches(split, image_size=16, batch_size=1)


def test_records_and_files_give_the_same_batches(folder: Path, tmp_path: Path) -> None:
    files = data.open_split(folder, "train")
    contents = [(files.path(row).read_bytes(), int(files.index.labels[row]) + 1) for row in range(files.num_rows)]
    records = data.open_split(write_records(tmp_path, contents, "image/encoded", "image/class/label"), "train")
    assert_equal(training(files), training(records))


def test_a_map_that_is_planned_again_decodes_the_same(folder: Path) -> None:
    """Decodes every other row only, like one of two processes, with the parts of the pipeline."""
    split = data.open_split(folder, "train")
    decode = decoding.Decoder(split, 16, lambda row: [row, tf.constant(False)], crops.central_box, Skipped())
    images = [decode(tf.constant(row, tf.int64))[0].numpy() for row in range(0, 23, 2)]
    np.testing.assert_array_equal(np.stack(images), evaluation(split)[0][0][::2])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_share_of_lines(share: float) -> None:
    image = np.full((100, 5, 3), 128, np.uint8)
    image[: int(100 * share)] = 7
    assert decoding.share_of_lines(image) == pytest.approx(share)
