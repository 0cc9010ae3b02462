"""Fine-tunes a language model of KerasHub under a strategy: `python examples/finetune/main.py --lora_rank=8`."""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

# Import the example as the package `finetune`, so that its `train` does not shadow other modules of that name.
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.options import define_placing_flags, define_run_flags, from_flags, run_program, start_tensorflow

from finetune import documents
from finetune.options import Options, check

flags.DEFINE_string(
    "preset",
    None,
    "Folder of a preset of KerasHub, as save_to_preset writes it. Default: a small model like GPT-2, which is trained "
    "first, once, on this repository's pages, and kept in runs/small_gpt2.",
)
flags.DEFINE_string(
    "text",
    None,
    "UTF-8 text to train on: a file, in which <|endoftext|> separates documents, or a folder. Default: source code of "
    "this repository.",
)
flags.DEFINE_integer("lora_rank", 0, "Rank of LoRA adapters; 0 trains all weights.", lower_bound=0)
flags.DEFINE_enum("quantize", None, ["int8", "int4"], "Quantizes the frozen weights; with --lora_rank only.")
flags.DEFINE_integer("sequence_length", 128, "Tokens in a row of a batch.", lower_bound=1)
flags.DEFINE_integer("batch_size", 8, "Global batch size: rows in one step on all devices.", lower_bound=1)
flags.DEFINE_integer("epochs", 8, "Passes over the text; each ends with validation and a checkpoint.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate",
    None,
    "Peak learning rate of AdamW, after the warm-up; decayed to 0 along a cosine. Default: 5e-5; for the small model "
    "3e-3; a sixth of it with --quantize.",
    lower_bound=0.0,
)
flags.DEFINE_integer("warmup_steps", 20, "Steps of linear warm-up.", lower_bound=0)
flags.DEFINE_float(
    "weight_decay", 0.01, "Weight decay of AdamW; norms, biases and embeddings are exempt.", lower_bound=0.0
)
flags.DEFINE_float("global_clipnorm", 1.0, "Clips gradients to this global norm; 0 does not clip.", lower_bound=0.0)
flags.DEFINE_string("prompt", "", "Prompt of the samples. Default: the start of a document.")
flags.DEFINE_integer(
    "sample_length", 128, "Tokens of the samples before and after training, with the prompt; 0 for none.", lower_bound=0
)
flags.DEFINE_float(
    "temperature", 0.5, "Sampling temperature, over the 5 most likely tokens; 0 takes the most likely.", lower_bound=0.0
)
flags.DEFINE_string("save", None, "Folder for the tuned preset. Default: `preset` in the run folder.")
flags.DEFINE_string("save_adapters", None, "File, ending in .lora.h5, for the adapters alone.")
define_placing_flags()
define_run_flags()


def main(argv: list[str]) -> None:
    """Fine-tunes as the flags say, prints samples, and the result as the last line."""
    run_program(argv, run)


def run() -> Any:
    """Reads the text, and trains on it."""
    options = from_flags(Options)
    check(options)
    text = documents.load(options.text)

    start_tensorflow()
    from finetune import train

    return train.run(options, text)


if __name__ == "__main__":
    app.run(main)
