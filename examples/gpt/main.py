"""Trains a language model under a strategy: `python examples/gpt/main.py --mesh=data=2`."""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

# Import the example as the package `gpt`, so that its `train` does not shadow other modules of that name.
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.options import define_placing_flags, define_run_flags, from_flags, run_program, start_tensorflow

from gpt import text
from gpt.options import Options, check

flags.DEFINE_string(
    "data_file", None, "Text to train on; <|endoftext|> separates documents. Default: this repository's pages."
)
flags.DEFINE_string(
    "backbone",
    None,
    "A decoder of KerasHub instead of the built-in one: its name, as GPT2Backbone, or a folder with a preset.",
)
flags.DEFINE_enum(
    "tokenizer",
    "bytes",
    ["bytes", "bpe", "gpt2", "preset"],
    "Tokens: bytes; byte pairs learnt from the text, by sentencepiece or, as gpt2, in the format of GPT-2 in KerasHub; "
    "or those of --backbone's preset.",
)
flags.DEFINE_integer("vocab_size", 1024, "Number of tokens for --tokenizer=bpe or gpt2.", lower_bound=1)
flags.DEFINE_integer("sequence_length", 64, "Tokens in a row of a batch: the context of the model.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Global batch size: rows in one step on all devices.", lower_bound=1)
flags.DEFINE_integer("num_layers", 2, "Transformer blocks.", lower_bound=1)
flags.DEFINE_integer("num_heads", 4, "Attention heads per block.", lower_bound=1)
flags.DEFINE_integer("units", 128, "Hidden size, a multiple of --num_heads.", lower_bound=1)
flags.DEFINE_float("dropout", 0.0, "Fraction of the features dropped in training.", lower_bound=0.0, upper_bound=0.9)
flags.DEFINE_integer(
    "num_experts",
    0,
    "Experts of each feed-forward layer, each as large as the dense layer; 0 for the dense layer.",
    lower_bound=0,
)
flags.DEFINE_integer("top_k", 2, "Experts that each token takes.", lower_bound=1)
flags.DEFINE_float(
    "load_balancing_loss",
    0.01,
    "Factor of the loss that keeps experts evenly used, over the global batch; 0 for none.",
    lower_bound=0.0,
)
flags.DEFINE_float(
    "initial_scale",
    1.0,
    "Factor of the random initial weights of --backbone. KerasHub's suit wide models; narrow ones learn faster with 6.",
    lower_bound=0.0,
)
flags.DEFINE_float(
    "learning_rate",
    3e-3,
    "Peak learning rate of AdamW, after the warm-up; decayed to 0 along a cosine.",
    lower_bound=0.0,
)
flags.DEFINE_integer("warmup_steps", 25, "Updates of linear warm-up.", lower_bound=0)
flags.DEFINE_float(
    "weight_decay", 0.01, "Weight decay of AdamW; norms, biases and embeddings are exempt.", lower_bound=0.0
)
flags.DEFINE_float("global_clipnorm", 1.0, "Clips gradients to this global norm; 0 does not clip.", lower_bound=0.0)
flags.DEFINE_integer(
    "epochs", 12, "Epochs of --steps_per_epoch batches; each ends with validation and a checkpoint.", lower_bound=1
)
flags.DEFINE_integer(
    "steps_per_epoch", 80, "Batches in an epoch, independent of the length of the text.", lower_bound=1
)
flags.DEFINE_integer("accumulation", 1, "Gradient accumulation: batches per update of the weights.", lower_bound=1)
flags.DEFINE_integer("sample_length", 600, "Tokens of the sample generated at the end; 0 for none.", lower_bound=0)
flags.DEFINE_string("prompt", "", "Prompt of the sample. Default: the start of a document.")
flags.DEFINE_float("temperature", 0.5, "Sampling temperature; 0 always takes the most likely token.", lower_bound=0.0)
flags.DEFINE_string("save", None, "Path, ending in .keras, to save the trained model to.")
flags.DEFINE_string("save_preset", None, "Folder to save the trained --backbone and its tokenizer to, as a preset.")
define_placing_flags()
define_run_flags()


def main(argv: list[str]) -> None:
    """Trains as the flags say, prints a sample, and the result as the last line."""
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
