"""A language model of plain Keras layers, trained under any strategy and mesh; `python examples/gpt/main.py`."""
