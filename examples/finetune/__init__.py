"""A language model of KerasHub, fine-tuned on a text under any strategy and mesh; `python examples/finetune/main.py`."""
