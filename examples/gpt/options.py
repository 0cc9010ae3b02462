"""The options of a run, and their checks."""

from dataclasses import dataclass

from common.options import OptionError, PlacingOptions, RunOptions


@dataclass(frozen=True)
class Options(PlacingOptions, RunOptions):
    """The options of a run; `main.py` has a flag for each, with the same name and default."""

    data_file: str | None = None
    backbone: str | None = None
    tokenizer: str = "bytes"
    vocab_size: int = 1024
    sequence_length: int = 64
    batch_size: int = 32
    num_layers: int = 2
    num_heads: int = 4
    units: int = 128
    dropout: float = 0.0
    num_experts: int = 0
    top_k: int = 2
    load_balancing_loss: float = 0.01
    initial_scale: float = 1.0
    learning_rate: float = 3e-3
    warmup_steps: int = 25
    weight_decay: float = 0.01
    global_clipnorm: float = 1.0
    epochs: int = 12
    steps_per_epoch: int = 80
    accumulation: int = 1
    sample_length: int = 600
    prompt: str = ""
    temperature: float = 0.5
    save: str | None = None
    save_preset: str | None = None


def check(options: Options) -> None:
    """Refuses options that cannot work on any machine; it does not need TensorFlow.

    Raises:
        OptionError: the message names the flag.
    """
    try:
        options.prompt.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"--prompt={options.prompt!r}: expected text in UTF-8. {error}.") from error
    if options.tokenizer == "preset" and options.backbone is None:
        raise OptionError("--tokenizer=preset needs --backbone, a folder with a preset of KerasHub.")
    if options.save_preset is not None and (options.backbone is None or options.tokenizer not in ("preset", "gpt2")):
        raise OptionError(
            "--save_preset needs --backbone, and the tokenizer of a preset: --tokenizer=gpt2 or --tokenizer=preset."
        )
    if options.units % options.num_heads:
        raise OptionError(f"--units={options.units} must be a multiple of --num_heads={options.num_heads}.")
    if options.num_experts and options.backbone is not None:
        raise OptionError(
            f"--num_experts={options.num_experts} is for the built-in decoder. Leave out --backbone={options.backbone}."
        )
    if options.num_experts and options.top_k > options.num_experts:
        raise OptionError(f"--top_k={options.top_k} must be at most --num_experts={options.num_experts}.")
