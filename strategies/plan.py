"""Plans training on GPUs that one need not have: ``python -m strategies.plan``.

    python -m strategies.plan --layers=32 --hidden=4096 --heads=32 --batch=512 --gpus=8 --gpu=H100
    python -m strategies.plan --layers=80 --hidden=8192 --heads=64 --batch=1024 --gpus=64 --gpu=A100 --svg=step.svg
    python -m strategies.plan --layers=32 --hidden=4096 --heads=32 --batch=512 --gpus=8 --scale=8,64,512,4096
    python -m strategies.plan --layers=32 --hidden=4096 --heads=32 --experts=8 --batch=512 --gpus=64
    python -m strategies.plan --layers=48 --hidden=6144 --heads=48 --lora=16 --frozen=bfloat16 --batch=16 --gpus=4
    python -m strategies.plan --resnet=50 --batch=1024 --gpus=4
    python -m strategies.plan --layers=80 --hidden=8192 --heads=64 --batch=1024 --gpus=512 --dry-run

It prints the fastest meshes that fit, with the time and memory of a step, from formulas: see `strategies.planning`. On
GPUs other than the A100 they were not compared with measurements. `keras_ext.training_plan` plans any Keras model, by
measuring its layers.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from strategies.command_line import Parser
from strategies.planning import (
    GPUS,
    NETWORKS,
    Experts,
    Lora,
    ResNet,
    Search,
    Transformer,
    gpu_of,
    resnet_search,
    search,
)
from strategies.planning.dry_run import command_line as dry_run
from strategies.planning.picture import picture
from strategies.planning.report import as_json, as_text
from strategies.planning.scaling import scaling_table

_FROZEN_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a plan; returns the exit code: 1 if no layout fits, or a dry run ends in a deadlock.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for invalid flags.
    """
    parser = _parser()
    flags = parser.parse_args(argv)
    try:
        model = _model(flags)
        gpu = gpu_of(flags.gpu, flags.network)
        _check_together(flags)
        if flags.dry_run:
            report, has_ended = dry_run.run(flags, model, gpu)
            print(report)
            return 0 if has_ended else 1
        if isinstance(model, ResNet):
            find: Callable[..., Search] = functools.partial(resnet_search, model)
            units, unit, name = 1, "images", f"ResNet{model.depth}"
        else:
            find = functools.partial(search, model)
            units, unit, name = model.sequence_length, "tokens", f"{model.num_parameters / 1e9:.1f} billion parameters"
        find = functools.partial(find, gpu=gpu, host_size=flags.host_size)
        if flags.scale:
            table, fits = scaling_table(
                functools.partial(find, num_best=1),
                flags.scale,
                batch_size=flags.batch,
                num_devices=flags.gpus,
                units_of_row=units,
                unit=unit,
            )
            print(table)
            return 0 if fits else 1
        found = find(flags.batch, flags.gpus, num_best=flags.best)
        if flags.svg and found.best:
            _svg_path(flags.svg).write_text(picture(found, f"{name}, {flags.gpus} x {gpu.name}"), encoding="utf-8")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    title = f"{name}, {gpu.name}:"
    if flags.json:
        print(as_json(found, model.num_parameters, flags.batch))
    else:
        print(as_text(found, title, flags.batch * units, unit))
    return 0 if found.best else 1


def _parser() -> Parser:
    parser = Parser("plan")
    transformer = parser.add_argument_group("a transformer")
    add = transformer.add_argument
    add("--layers", type=int, metavar="N", help="blocks of the model")
    add("--hidden", type=int, metavar="N", help="features of a token")
    add("--heads", type=int, metavar="N", help="heads of attention")
    add("--sequence", type=int, default=2048, metavar="N", help="tokens of a row; default 2048")
    add("--vocabulary", type=int, default=51200, metavar="N", help="tokens in all; default 51200")
    parser.add_rare(add, "--experts", type=int, metavar="N", help="experts in place of each feed-forward part")
    parser.add_rare(add, "--top-k", type=int, default=2, metavar="N", help="experts that compute a token; default 2")
    parser.add_rare(add, "--lora", type=int, metavar="RANK", help="train adapters of this rank only")
    parser.add_rare(
        add,
        "--frozen",
        choices=_FROZEN_BYTES,
        default="float32",
        metavar="DTYPE",
        help=f"dtype of weights with --lora: {', '.join(_FROZEN_BYTES)}; default float32",
    )
    resnet = parser.add_argument_group("a ResNet")
    resnet.add_argument("--resnet", type=int, metavar="DEPTH", help="50, 101 or 152 layers")
    resnet.add_argument("--image", type=int, default=224, metavar="N", help="pixels of a side; default 224")
    add = parser.add_argument_group("training").add_argument
    add("--batch", type=int, required=True, metavar="N", help="rows of the global batch; required")
    add("--gpus", type=int, required=True, metavar="N", help="the number of GPUs; required")
    add("--gpu", choices=GPUS, default="A100", metavar="KIND", help=f"{', '.join(GPUS)}; default A100")
    parser.add_rare(
        add,
        "--network",
        choices=NETWORKS,
        metavar="KIND",
        help=f"between hosts: {', '.join(NETWORKS)}; default: the usual one of the GPU",
    )
    parser.add_rare(add, "--host-size", type=int, default=8, metavar="N", help="GPUs of a host; default 8")
    add = parser.add_argument_group("output").add_argument
    add("--best", type=int, default=10, metavar="N", help="the number of meshes to print; default 10")
    parser.add_rare(
        add,
        "--scale",
        type=_numbers,
        metavar="N,N,...",
        help="print the best mesh of each number of GPUs, at rows for each GPU",
    )
    add("--svg", metavar="FILE", help="draw the parts of a step's time")
    add("--json", action="store_true", help="print JSON")
    dry_run.add_flags(parser)
    return parser


def _model(flags: argparse.Namespace) -> Transformer | ResNet:
    """Returns the model that the flags describe.

    Raises:
        ValueError: they describe none, two, or an impossible one.
    """
    sizes = {"--layers": flags.layers, "--hidden": flags.hidden, "--heads": flags.heads}
    given = [name for name, value in sizes.items() if value is not None]
    if flags.resnet is not None:
        if given or flags.experts or flags.lora:
            raise ValueError("--resnet goes without the flags of a transformer: leave one of the two out.")
        return ResNet(flags.resnet, flags.image)
    if len(given) < len(sizes):
        missing = [name for name in sizes if name not in given]
        raise ValueError(f"A transformer needs {', '.join(sizes)}; or give --resnet. Missing: {', '.join(missing)}")
    experts = None if flags.experts is None else Experts(flags.experts, flags.top_k)
    lora = None if flags.lora is None else Lora(flags.lora, _FROZEN_BYTES[flags.frozen])
    return Transformer(
        flags.layers, flags.hidden, flags.heads, flags.sequence, flags.vocabulary, experts=experts, lora=lora
    )


def _check_together(flags: argparse.Namespace) -> None:
    """Refuses flags that would have no effect beside others.

    Raises:
        ValueError: there are such flags.
    """
    given = {name: value for name, value in vars(flags).items() if value not in (None, False)}
    of_dry_run = [name for name in ("mesh", "micro_batch", "schedule", "stages", "shard", "ranks") if name in given]
    if of_dry_run and not flags.dry_run:
        raise ValueError(f"Give --dry-run, too. Received: {', '.join(map(_as_flag, of_dry_run))}")
    exclusive = ("dry_run", "scale", "svg", "json") if flags.scale else ("dry_run", "scale", "svg")
    outputs = [name for name in exclusive if name in given]
    if len(outputs) > 1:
        raise ValueError(f"Give one of these at a time. Received: {', '.join(map(_as_flag, outputs))}")


def _as_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"numbers of GPUs from 1, such as 8,64,512. Received: {text}")
    return numbers


def _svg_path(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".svg":
        raise ValueError(f"The picture is an SVG file: give a path that ends in .svg. Received: {text!r}.")
    return path


if __name__ == "__main__":
    sys.exit(main())
