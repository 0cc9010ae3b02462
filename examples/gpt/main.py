"""Trains a language model under a strategy: `python examples/gpt/main.py --mesh=data=2`."""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

# Seen from the folder above, the example is the package `gpt`, and its `train` is nobody else's.
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.options import define_placing_flags, define_run_flags, from_flags, run_program, start_tensorflow

from gpt import text
from gpt.options import Options, check

flags.DEFINE_string(
    "data_file", None, "Any file to train on; <|endoftext|> in it parts documents. Default: this repository's pages."
)
flags.DEFINE_enum(
    "tokenizer", "bytes", ["bytes", "bpe"], "What a token is: a byte, or byte pairs found by sentencepiece in the text."
)
flags.DEFINE_integer("vocab_size", 1024, "Number of tokens for --tokenizer=bpe.", lower_bound=1)
flags.DEFINE_integer("sequence_length", 64, "Tokens that the model sees, and a row of a batch.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Global batch size: rows in one step on all devices.", lower_bound=1)
flags.DEFINE_integer("num_layers", 2, "Blocks of attention and feed-forward layer.", lower_bound=1)
flags.DEFINE_integer("num_heads", 4, "Heads of an attention.", lower_bound=1)
flags.DEFINE_integer("units", 128, "Features of a token between the blocks, a multiple of --num_heads.", lower_bound=1)
flags.DEFINE_float("dropout", 0.0, "Share of the features dropped in training.", lower_bound=0.0, upper_bound=0.9)
flags.DEFINE_float("learning_rate", 3e-3, "Of AdamW, after the warm-up; it falls to 0 along a cosine.", lower_bound=0.0)
flags.DEFINE_integer("warmup_steps", 25, "Updates in which the learning rate rises from 0.", lower_bound=0)
flags.DEFINE_float("weight_decay", 0.01, "Of AdamW, for all but norms, biases and embeddings.", lower_bound=0.0)
flags.DEFINE_float("global_clipnorm", 1.0, "Longest gradient, of all weights together; 0 for any.", lower_bound=0.0)
flags.DEFINE_integer("epochs", 12, "How often to validate, save and log.", lower_bound=1)
flags.DEFINE_integer("steps_per_epoch", 80, "Batches in an epoch, wherever the text ends.", lower_bound=1)
flags.DEFINE_integer("accumulation", 1, "Batches whose gradients make one update.", lower_bound=1)
flags.DEFINE_integer("sample_length", 600, "Tokens of the sample at the end; 0 for none.", lower_bound=0)
flags.DEFINE_string("prompt", "", "What the sample begins with. Default: the beginning of a document.")
flags.DEFINE_float("temperature", 0.5, "Of the sample; 0 takes the likeliest token every time.", lower_bound=0.0)
define_placing_flags()
define_run_flags()


def main(argv: list[str]) -> None:
    """Runs what the flags say and prints a sample, and as the last line the result."""
    run_program(argv, run)


def run() -> Any:
    """Reads the text, and trains on it."""
    options = from_flags(Options)
    check(options)
    source = text.load(options.data_file)

    start_tensorflow()
    from gpt import train

    return train.run(options, source)


if __name__ == "__main__":
    app.run(main)
