"""Files of weights as named tensors that are read box by box, and written in each of the known formats.

`strategies.convert` is the program; `open_tensors` reads, and `write_tensors` writes.
"""

from strategies.converting.legacy_h5 import TensorsByLayer
from strategies.converting.sources import open_tensors
from strategies.converting.targets import write_tensors

__all__ = ["TensorsByLayer", "open_tensors", "write_tensors"]
