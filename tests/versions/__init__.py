"""The supported pairs of TensorFlow and Keras at both ends, for pip, and the part of the tests that runs with each.

`make test-versions` installs `oldest.txt` and `newest.txt` in environments of their own and runs there what `suite.txt`
lists. `make fit-oldest` only trains, with `fit.py`. Results: docs/numbers/versions.md.
"""
