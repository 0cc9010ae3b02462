"""`strategies.exact`: numbers that can be compared with those of one device, also on GPUs."""

from __future__ import annotations

import tensorflow as tf


def exact() -> None:
    """Makes a program's numbers comparable: products in full float32, and the same bits in every run.

    Call it at the beginning of the program, in every process, before the strategy and the model are made: kernels and
    traced functions keep the settings they were made with. It changes two settings of TensorFlow for the whole process:

    - `tf.config.experimental.enable_tensor_float_32_execution(False)`. GPUs otherwise round the factors of float32
      products and convolutions to 10 bits of mantissa (TF32), and results differ by about 1e-3 as soon as a replica's
      part of a batch is multiplied by another algorithm than the whole batch.
    - `tf.config.experimental.enable_op_determinism()`. GPUs otherwise add up sums in the order in which threads
      arrive, and cuDNN chooses its algorithms by measuring them.

    **Promised.** The same program, seeds, library versions and devices give the same bits in every run, as far as
    TensorFlow promises that. Numbers under a strategy deviate from those of one device by rounding only: 1e-6 on CPU
    devices, and below 1e-7 on two logical GPUs of an H100 (measured); allow 1e-5 on other GPUs.

    **Not promised.** The bits on one device and on several may differ: cuDNN and cuBLAS choose algorithms by shape, and
    a replica's part of a batch has another shape than the whole batch. So may the bits on different kinds of GPU.
    Dropout still draws different numbers on each replica. float16 and bfloat16 keep their own rounding.

    **Costs.** Float32 products run at the GPU's float32 speed, several times slower than TF32. Some operations have
    slow deterministic kernels, or none, and raise `UnimplementedError`. A `Dataset.map` that draws random numbers is no
    longer parallel. Keras compiles nothing with XLA: `jit_compile=True` means False, with a warning. TensorFlow
    does not read the clock, so `strategies.seconds_waited` stays at 0. Random operations without a seed, such as the
    shuffles of `fit`, raise `RuntimeError`: call `keras.utils.set_random_seed` first.

    Example:

        keras.utils.set_random_seed(1)
        strategies.exact()
        strategy = strategies.MirroredStrategy()

    Source: the documentation of the two settings, TensorFlow 2.21.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()
