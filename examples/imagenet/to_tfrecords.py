"""Converts image files to TFRecord shards: `python examples/imagenet/to_tfrecords.py --data_dir=A --output_dir=B`."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from absl import app, flags, logging

_EXAMPLES = Path(__file__).resolve().parents[1]

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags; called only if this file is the main program: names may clash with those of other programs."""
    flags.DEFINE_string(
        "data_dir", None, "Folder with the images, in class folders or called <wnid>_*.JPEG.", required=True
    )
    flags.DEFINE_string("output_dir", None, "Folder for the shards; it is made.", required=True)
    flags.DEFINE_integer("num_shards", 1024, "Shards of the training images.", lower_bound=1, upper_bound=99999)
    flags.DEFINE_integer(
        "num_val_shards", None, "Shards of the validation images. Default: an eighth of --num_shards.", lower_bound=1
    )
    flags.DEFINE_multi_enum("split", ["train", "val"], ["train", "val"], "The splits to convert; repeatable.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Processes that write shards.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Seed of the assignment of images to shards.", lower_bound=0)
    flags.DEFINE_integer("verbose", 1, "0: no progress bar; 1: one.", lower_bound=0, upper_bound=1)


def main(argv: list[str]) -> None:
    """Converts as the flags say, and prints the result as the last line."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only, received {argv[1:]}.")
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.INFO)
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Do not occupy GPUs.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from imagenet.errors import DataError

    try:
        print(_run(), flush=True)
    except DataError as error:
        sys.exit(f"error: {error}")


def _run() -> str:
    from imagenet import converting, data

    start = time.perf_counter()
    num_shards = {"train": FLAGS.num_shards, "val": FLAGS.num_val_shards or max(1, FLAGS.num_shards // 8)}
    splits = [data.open_split(FLAGS.data_dir, name) for name in dict.fromkeys(FLAGS.split)]
    output_dir = Path(FLAGS.output_dir)
    shards = [
        shard for split in splits for shard in converting.plan(split, output_dir, num_shards[split.name], FLAGS.seed)
    ]
    converting.claim(output_dir, splits, num_shards, FLAGS.seed)
    kept = {shard.path: count for shard in shards if (count := converting.finished(shard)) is not None}
    to_do = [shard for shard in shards if shard.path not in kept]
    logging.info("shards: %d to make, %d kept from a former run", len(to_do), len(kept))
    num_to_do = sum(len(shard.files) for shard in to_do)
    outcome = converting.Outcome(0, 0, ())
    if to_do:
        outcome = converting.convert(to_do, min(FLAGS.processes, len(to_do)), _progress(num_to_do))
    for file, reason in outcome.skipped[:20]:
        logging.warning("skipped: %s: %s", file, reason)
    num_skipped_before = sum(len(shard.files) - kept[shard.path] for shard in shards if shard.path in kept)
    seconds = time.perf_counter() - start
    return (
        f"result images={outcome.num_images + sum(kept.values())} shards={len(shards)} made={len(to_do)} "
        f"skipped={len(outcome.skipped) + num_skipped_before} encoded={outcome.num_encoded} "
        f"images_per_second={num_to_do / seconds:.0f} seconds={seconds:.1f}"
    )


def _progress(num_images: int) -> Callable[[int], None]:
    """Returns a function that shows the number of finished images."""
    if not FLAGS.verbose:
        return lambda count: None
    # Keras takes seconds to import: only if there is a bar to show.
    import keras

    bar = keras.utils.Progbar(num_images, unit_name="image")
    # At the first call the speed is not known yet.
    return lambda count: bar.update(count) if count else None


if __name__ == "__main__":
    # Import the example as the package `imagenet`.
    sys.path.insert(0, str(_EXAMPLES))
    define_flags()
    app.run(main)
