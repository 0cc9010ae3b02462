"""TensorFlow's tutorial "Multi-worker training with Keras", ported to keras-strategies.

    python -m strategies.launch --nproc-per-node 2 examples/ports/multi_worker_keras.py --epochs=3

README.md in this folder lists the differences from the original.
"""

import os
import sys
from pathlib import Path

from absl import app, flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The examples; and, for a clone with nothing installed, the library.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2]))

import keras
import tensorflow as tf
from mnist import data, idx

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 3, "Passes over the training images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Global batch size: images in one step on all devices.", lower_bound=1)
flags.DEFINE_string("data_dir", None, "Folder with the four MNIST files. Default: the best on this machine.")
flags.DEFINE_string("run_dir", None, "Folder for model, checkpoint and backup, shared by all processes.")


def mnist_dataset(split: data.Split, batch_size: int) -> tf.data.Dataset:
    """Returns an infinite dataset of global batches (images, labels), in another order in each pass."""
    images, labels = split.images.astype("float32") / 255, split.labels.astype("int64")
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.shuffle(len(labels)).repeat().batch(batch_size)


def build_and_compile_cnn_model() -> keras.Model:
    """Returns a small compiled convolutional network; call it in the strategy's scope."""
    model = keras.Sequential(
        [
            keras.layers.Input((data.IMAGE_SIZE, data.IMAGE_SIZE)),
            keras.layers.Reshape((data.IMAGE_SIZE, data.IMAGE_SIZE, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(data.NUM_CLASSES),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )
    return model


def write_checkpoint(model: keras.Model, folder: Path, *, is_chief: bool) -> None:
    """Saves a `tf.train.Checkpoint` in every process: rank 0 in `folder`, the others in a temporary folder."""
    written = folder if is_chief else folder.with_name(f"{folder.name}-of-process-{os.getpid()}")
    tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(written), max_to_keep=1).save()
    if not is_chief:
        tf.io.gfile.rmtree(str(written))


def main(argv: list[str]) -> None:
    """Trains, saves, loads again and prints the result as the last line."""
    try:
        digits = data.load(FLAGS.data_dir)
    except idx.DataError as error:
        sys.exit(f"error: {error}")
    # Hide TensorFlow's log lines about strategies.
    tf.get_logger().setLevel("WARNING")

    # Before any TensorFlow operation: the connection to the other processes cannot be made later.
    strategy = strategies.MultiWorkerMirroredStrategy()
    is_chief = strategy.is_chief
    with strategy.scope():
        model = build_and_compile_cnn_model()

    output = None if FLAGS.run_dir is None else Path(FLAGS.run_dir)
    model.fit(
        mnist_dataset(digits.train, FLAGS.batch_size),
        epochs=FLAGS.epochs,
        steps_per_epoch=max(1, len(digits.train.labels) // FLAGS.batch_size),
        shuffle=False,  # The dataset shuffles itself.
        verbose=2,
        callbacks=[] if output is None else [keras.callbacks.BackupAndRestore(output / "backup")],
    )

    if output is not None:
        write_checkpoint(model, output / "checkpoint", is_chief=is_chief)
        # All processes use one path: rank 0 writes, and loading waits until the file is complete.
        model.save(output / "model.keras")
        with strategy.scope():
            model = keras.models.load_model(output / "model.keras")

    images, labels = digits.test.images.astype("float32") / 255, digits.test.labels
    logs = model.evaluate(images, labels, batch_size=FLAGS.batch_size, return_dict=True, verbose=0)
    if is_chief:
        replicas = strategy.num_replicas_in_sync
        print(f"result test_accuracy={logs['accuracy']:.4f} test_loss={logs['loss']:.4f} replicas={replicas}")


if __name__ == "__main__":
    app.run(main)
