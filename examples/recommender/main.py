"""Trains a recommender under a strategy: `python examples/recommender/main.py --devices=2`."""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

# Import the example as the package `recommender`, so that its `train` does not shadow other modules of that name.
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.options import define_run_flags, from_flags, run_program, start_tensorflow

from recommender.options import LEARNING_RATES, SHARDS, Options, check

flags.DEFINE_string(
    "data_dir", None, "Folder with ratings.dat of MovieLens 1M. Default: synthetic ratings, which it writes first."
)
flags.DEFINE_integer("num_ratings", 200_000, "Synthetic ratings, without --data_dir.", 1, 10_000_000)
flags.DEFINE_integer("epochs", 5, "Passes over the training ratings.", lower_bound=1)
flags.DEFINE_integer("batch_size", 1024, "Global batch size: ratings in one step on all devices.", lower_bound=1)
flags.DEFINE_integer("embedding_dim", 32, "Columns of the tables, and size of the towers' vectors.", lower_bound=1)
flags.DEFINE_enum(
    "optimizer",
    "adagrad",
    list(LEARNING_RATES),
    "adagrad touches the rows of tables that a batch looks up, adam all rows.",
)
flags.DEFINE_float(
    "learning_rate",
    None,
    f"Learning rate. Default: {', '.join(f'{rate} for {name}' for name, rate in LEARNING_RATES.items())}.",
    lower_bound=0.0,
)
flags.DEFINE_enum(
    "shard",
    "optimizer",
    SHARDS,
    "Parts of the model that lie in shards on the replicas: optimizer: the tables, and the slots of all weights; "
    "weights: the other weights, too; none: each replica has all.",
)
flags.DEFINE_string("save", None, "Path, ending in .keras, to save the trained model to.")
define_run_flags()


def main(argv: list[str]) -> None:
    """Trains as the flags say, and prints the result as the last line."""
    run_program(argv, run)


def run() -> Any:
    """Reads the ratings, or first writes synthetic ones, and trains on them."""
    from recommender import ratings, synthetic

    options = from_flags(Options)
    check(options)
    if options.data_dir is None:
        path = synthetic.write(Path("runs") / f"synthetic-ratings-{options.num_ratings}", options.num_ratings)
    else:
        path = Path(options.data_dir) / ratings.FILE
    source = ratings.load(path)

    start_tensorflow()
    from recommender import train

    return train.run(options, source)


if __name__ == "__main__":
    app.run(main)
