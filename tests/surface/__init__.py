"""The grid of Keras' surface: every layer with weights x what people do to a layer x meshes.

`rows` has the layers, found by walking `keras.layers`; `columns` what is done to them; `meshes` where they are trained.
`cells.outcome` trains one cell and compares it with plain Keras: equal, warned of, or refused with a message of ours.
``python -m tests.surface`` (``make surface``) runs all of it, or a random part; `sample` has what `make test` runs.
"""
