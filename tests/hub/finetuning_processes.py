"""Fine-tunes tasks of KerasHub over the processes of a job, and prints how much they differ from plain Keras.

    python -m strategies.launch --nproc-per-node 2 -m tests.hub.finetuning_processes --only GPT2 Llama
    horovodrun -np 2 python -m tests.hub.finetuning_processes --engine HorovodStrategy --meshes tensor=2

A line for each cell of docs/numbers/finetuning_table.md that fits two devices: trained weights, losses, metrics,
predictions, `score` and generated tokens. Files are compared in the table and by
``test_they_pass_on_both_ranks[spanning-presets]``.
"""

from __future__ import annotations

import argparse
import os
import warnings

FAMILIES = ("GPT2", "Llama", "Gemma", "Qwen3", "BartSeq2SeqLM")
_ENGINES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")
_MESHES = ("tensor=2", "pipe=2", "shard=weights")
_WAYS = ("full", "LoRA", "QLoRA")


def main() -> None:
    """Prints a line for each cell, on rank 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.hub.finetuning_processes", description="Prints differences.")
    parser.add_argument("--engine", default=_ENGINES[0], choices=_ENGINES)
    parser.add_argument("--only", nargs="*", default=FAMILIES, help="names of tasks")
    parser.add_argument("--ways", nargs="*", default=_WAYS, choices=_WAYS)
    parser.add_argument("--meshes", nargs="*", default=_MESHES, choices=_MESHES)
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    import tensorflow as tf

    # Rewriting the graphs takes most of the time.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    import strategies
    from tests.hub.finetuning import MESHES, difference, on_mesh, on_one_device, results

    for name in flags.only:
        for way in flags.ways:
            expected = on_one_device(name, way)
            for mesh in flags.meshes:
                strategy = getattr(strategies, flags.engine)(**MESHES[mesh])
                model = on_mesh(name, way, mesh, strategy)
                found = results(name, model, (), strategy.scope, saves=False)
                own = {kind: difference(expected[kind], each) for kind, each in found.items()}
                if strategy.extended.engine.process_group.rank == 0:
                    print(f"{flags.engine} | {name} | {way} | {mesh} | {max(own.values()):.1e}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
