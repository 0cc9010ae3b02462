"""The grid of Keras' surface: every layer with weights x what people do to one x meshes.

`rows` are layers, found by walking `keras.layers`, `columns` what is done to them, `meshes` where they are trained.
`cells.outcome` trains one cell beside plain Keras; it has to be equal, warned of, or refused in words of ours.
``python -m tests.surface`` (``make surface``) runs all of it, or a random part, `sample` what `make test` runs.
"""
