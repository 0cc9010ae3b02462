"""Horovod's Keras MNIST example, ported to keras-strategies.

    horovodrun -np 2 python examples/ports/horovod_keras_mnist.py --epochs=4

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

import keras_ext
import strategies

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 6, "Passes over the training images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Global batch size: images in one step on all devices.", lower_bound=1)
flags.DEFINE_string("data_dir", None, "Folder with the four MNIST files. Default: the best on this machine.")
flags.DEFINE_string("run_dir", None, "Folder for the checkpoints, written by rank 0.")

LEARNING_RATE = 0.001
WARMUP_EPOCHS = 3


def build_model() -> keras.Model:
    """Returns a small convolutional network with dropout."""
    return keras.Sequential(
        [
            keras.layers.Input((data.IMAGE_SIZE, data.IMAGE_SIZE, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(data.NUM_CLASSES, activation="softmax"),
        ]
    )


def main(argv: list[str]) -> None:
    """Trains and prints the result as the last line."""
    try:
        digits = data.load(FLAGS.data_dir)
    except idx.DataError as error:
        sys.exit(f"error: {error}")
    # Hide TensorFlow's log lines about strategies.
    tf.get_logger().setLevel("WARNING")

    # Initialises Horovod, and selects the GPU of this local rank.
    strategy = strategies.HorovodStrategy()
    size = strategy.num_replicas_in_sync

    images, labels = digits.train.images[..., None].astype("float32") / 255, digits.train.labels.astype("int64")
    # The same global batches in every process: each process computes its rows of them.
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels)).batch(FLAGS.batch_size)

    scaled_rate = LEARNING_RATE * size
    with strategy.scope():
        model = build_model()
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(),
            optimizer=keras.optimizers.Adam(scaled_rate),
            metrics=["accuracy"],
        )

    callbacks = [keras_ext.LearningRateWarmup(WARMUP_EPOCHS, target_learning_rate=scaled_rate, verbose=1)]
    if FLAGS.run_dir is not None:
        # On all processes: only rank 0 writes, and only rank 0 prints.
        callbacks.append(keras.callbacks.ModelCheckpoint(Path(FLAGS.run_dir) / "checkpoint-{epoch}.keras"))
    model.fit(dataset, epochs=FLAGS.epochs, callbacks=callbacks, shuffle=False, verbose=2)

    test_images = digits.test.images[..., None].astype("float32") / 255
    logs = model.evaluate(test_images, digits.test.labels, batch_size=FLAGS.batch_size, return_dict=True, verbose=0)
    if strategy.is_chief:
        print(f"result test_accuracy={logs['accuracy']:.4f} test_loss={logs['loss']:.4f} processes={size}")


if __name__ == "__main__":
    app.run(main)
