"""Trains handwritten digits in workers of Ray Train: `python deploy/ray/mnist_ray.py --num_workers=2`.

Each worker runs `train_on_worker`, ordinary Keras under `strategies.MultiWorkerMirroredStrategy`. Ray writes TF_CONFIG,
from which the strategy reads the addresses of all workers.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import ray.train
from ray.train.tensorflow import TensorflowTrainer

EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")


def train_on_worker(config: dict[str, Any]) -> None:
    """Trains on one worker; all workers call it with the same arguments."""
    # Imported here: Ray has set the environment of the worker by now.
    import keras

    import keras_ext
    import strategies

    sys.path.insert(0, EXAMPLES)
    from mnist import data, model, train

    class Report(keras.callbacks.Callback):
        """Gives Ray the logs of each epoch, the same on all workers."""

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            ray.train.report({"epoch": epoch + 1, **(logs or {})})

    strategy = strategies.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        network = model.build_model(dropout=0.25)
        network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    digits = data.load(config["data_dir"])
    steps = -(-len(digits.train.labels) // config["batch_size"])

    def batches(first_step: int, num_steps: int) -> Any:
        return train.training_batches(
            digits.train, config["batch_size"], seed=0, first_step=first_step, num_steps=num_steps
        )

    checkpoints = keras_ext.Checkpoints(Path(config["run_dir"]), steps, every_steps=10)
    at = checkpoints.restore(network)
    place = f"epoch {at.epoch + 1}, step {at.step} of {steps}"
    print(f"rank {strategy.rank}: process {os.getpid()} starts in {place}", flush=True)
    while at.epoch < config["epochs"]:
        # Keras starts at an epoch boundary: the rest of an interrupted epoch gets its own `fit`.
        end = at.epoch + 1 if at.step else config["epochs"]
        network.fit(
            batches(at.epoch * steps + at.step, (end - at.epoch) * steps - at.step),
            steps_per_epoch=steps - at.step,
            initial_epoch=at.epoch,
            epochs=end,
            validation_data=train.evaluation_batches(digits.test, config["batch_size"]),
            callbacks=[checkpoints, Report()],
            shuffle=False,  # The batches are in their final order.
            verbose=2 if strategy.is_chief else 0,
        )
        at = checkpoints.restore(network)
    if strategy.is_chief:
        print("result", *(f"{name}={values[-1]:.7g}" for name, values in checkpoints.history.items()), flush=True)


def main() -> None:
    """Parses the flags, and trains; rank 0 prints the last logs."""
    parser = argparse.ArgumentParser(description="Trains handwritten digits in workers of Ray Train.")
    parser.add_argument("--num_workers", type=int, default=2, help="processes, each with one replica")
    parser.add_argument("--gpus", action="store_true", help="one GPU for each worker")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64, help="global: of all workers together")
    parser.add_argument("--data_dir", help="folder with the MNIST files; default: the digits of scikit-learn")
    parser.add_argument("--run_dir", default="runs/ray", help="checkpoints and Ray's files; all nodes share it")
    parser.add_argument("--max_failures", type=int, default=3, help="restarts after lost workers")
    flags = parser.parse_args()
    folder = Path(flags.run_dir).resolve()
    config = {**vars(flags), "run_dir": str(folder / "checkpoints")}
    trainer = TensorflowTrainer(
        train_on_worker,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=flags.num_workers, use_gpu=flags.gpus),
        run_config=ray.train.RunConfig(
            name="mnist",
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(max_failures=flags.max_failures),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
