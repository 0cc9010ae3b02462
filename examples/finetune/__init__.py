"""A language model of KerasHub, fine-tuned under any strategy and mesh; `python examples/finetune/main.py`."""
