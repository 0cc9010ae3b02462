"""The options of a run, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.folders import make_folder
from common.options import OptionError, PlacingOptions, RunOptions


@dataclass(frozen=True)
class Options(PlacingOptions, RunOptions):
    """The options of a run; `main.py` has a flag for each, with the same name and default."""

    preset: str | None = None
    text: str | None = None
    lora_rank: int = 0
    quantize: str | None = None
    sequence_length: int = 128
    batch_size: int = 8
    epochs: int = 8
    learning_rate: float | None = None
    warmup_steps: int = 20
    weight_decay: float = 0.01
    global_clipnorm: float = 1.0
    prompt: str = ""
    sample_length: int = 128
    temperature: float = 0.5
    save: str | None = None
    save_adapters: str | None = None


def check(options: Options) -> None:
    """Refuses options that cannot work on any machine; it does not need TensorFlow.

    Raises:
        OptionError: the message names the flag.
    """
    if options.quantize is not None and not options.lora_rank:
        raise OptionError(
            f"--quantize={options.quantize} needs --lora_rank: quantized weights are frozen, and adapters are trained."
        )
    if options.preset is not None and not (Path(options.preset) / "config.json").is_file():
        raise OptionError(f"--preset={options.preset}: expected a folder that save_to_preset has written.")
    if options.save is not None:
        check_saved_preset(Path(options.save))
    if options.save_adapters is not None:
        if not options.lora_rank:
            raise OptionError("--save_adapters needs --lora_rank: without adapters there is nothing to save.")
        if not options.save_adapters.endswith(".lora.h5"):
            raise OptionError(f"--save_adapters={options.save_adapters}: expected a file that ends in .lora.h5.")
        make_folder("--save_adapters", Path(options.save_adapters).parent)


def check_saved_preset(folder: Path) -> None:
    """Checks the folder of `--save`, and makes the folder above it.

    Raises:
        OptionError: it exists and is not a preset, or the folder above it cannot be written.
    """
    if folder.exists() and not (folder / "config.json").is_file():
        raise OptionError(f"--save={folder}: it exists and is not a preset. Choose another folder.")
    make_folder("--save", folder.parent)
