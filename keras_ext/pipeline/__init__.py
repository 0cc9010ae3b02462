"""Models cut into stages on different devices, through which micro-batches flow."""
