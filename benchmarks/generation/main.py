"""Measures text generation over two processes, beside plain KerasHub: `python benchmarks/generation/main.py`."""

import sys
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `generation`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, horovod_slots, program, rounds

from generation import contenders
from generation.workload import Workload

FLAGS = flags.FLAGS
program.define_contenders(contenders.KINDS)
flags.DEFINE_integer("rounds", 7, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("width", 1024, "Size of hidden states; a multiple of 128.", lower_bound=128)
flags.DEFINE_integer("blocks", 8, "Transformer blocks; an even number.", lower_bound=2)
flags.DEFINE_integer("rows", 8, "Prompts.", lower_bound=2)
flags.DEFINE_integer("prompt_tokens", 16, "Tokens of each prompt.", lower_bound=1)
flags.DEFINE_integer("new_tokens", 32, "Tokens to generate for each prompt.", lower_bound=1)
program.define_timeout()


def main() -> None:
    """Measures what the flags select; prints the tables to standard output, and logs a line per measurement."""
    if FLAGS.width % 128 or FLAGS.blocks % 2:
        raise app.UsageError(
            "Two processes share the heads of 64 units and the blocks: --width must be a multiple of 128, and --blocks "
            f"even. Received: --width={FLAGS.width}, --blocks={FLAGS.blocks}."
        )
    print(environment.describe(("tensorflow", "keras", "keras-hub", "numpy")), flush=True)
    names = program.installed(FLAGS.contender, contenders.KINDS)
    workload = Workload(
        FLAGS.width, FLAGS.blocks, FLAGS.rows, FLAGS.prompt_tokens, FLAGS.new_tokens, num_rounds=FLAGS.rounds
    )
    with horovod_slots.rendezvous_of_each() as slots:
        measured = rounds.measure_in_turn(
            contenders.contenders(names, workload, slots),
            workload.num_rounds,
            FLAGS.timeout_seconds,
            # All processes generate the same tokens.
            combine=min,
        )
    program.print_tables(
        f"width {workload.width}, {workload.num_blocks} blocks, {workload.num_rows} rows, "
        f"{workload.num_prompt_tokens} + {workload.num_new_tokens} tokens, {workload.num_rounds} rounds",
        contenders.comparisons(names),
        measured,
        "tokens/s",
        contenders.bound_of_pipe(measured, workload.num_rows),
    )


if __name__ == "__main__":
    program.run(main)
