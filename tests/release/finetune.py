"""Fine-tunes a language model by adapters, on two devices of one process or in the processes of `strategies-launch`.

    python finetune.py
    strategies-launch --nproc-per-node 2 finetune.py
    python finetune.py gemma_2b_en

The argument is a preset of KerasHub, a name or a folder. Without it, a small one is made and trained first.
"""

import sys

import keras
import keras_hub
import tensorflow as tf

import strategies

# All GPUs of this process; without a GPU, two devices on the CPU.
if not tf.config.list_physical_devices("GPU"):
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = strategies.MultiWorkerMirroredStrategy()

keras.utils.set_random_seed(1)
BEFORE = ["the cat sat on the mat", "the dog sat on the log"] * 64
AFTER = ["the cat saw the dog", "the dog saw the cat"] * 64


def small_preset() -> str:
    """Makes a model of four letters a word, which knows the first texts, and returns its folder."""
    tokens = [*sorted({letter for text in BEFORE + AFTER for letter in text} - {" "}), "th", "Ġ", "<|endoftext|>"]
    tokenizer = keras_hub.models.GPT2Tokenizer({token: i for i, token in enumerate(tokens)}, ["t h"])
    backbone = keras_hub.models.GPT2Backbone(len(tokens), 2, 4, 64, 128, dropout=0.0, max_sequence_length=32)
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=24)
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor)
    model.compile(keras.optimizers.Adam(5e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(BEFORE, batch_size=8, epochs=5, verbose=0)
    model.save_to_preset("preset")
    return "preset"


# Rank 0 makes it; all get the name once the files are complete.
preset = sys.argv[1] if len(sys.argv) > 1 else strategies.load_on_all(strategy, small_preset, [])
with strategy.scope():
    model = keras_hub.models.CausalLM.from_preset(preset)
    model.backbone.enable_lora(rank=8)  # only the adapters are trained
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        sampler="greedy",
    )
first = model.generate("the cat", max_length=24)
history = model.fit(AFTER, batch_size=8, epochs=5, verbose=2)
last = model.generate("the cat", max_length=24)
model.save_to_preset("tuned")  # opens in plain KerasHub, the adapters added to the weights
if strategy.is_chief:
    losses = history.history["loss"]
    print(f"before: {first!r}\nafter: {last!r}\nreplicas: {strategy.num_replicas_in_sync}, last loss: {losses[-1]:.6f}")
