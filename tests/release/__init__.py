"""The distribution as users get it: what it contains, and that it works without this repository.

`test_contents.py` and `test_programs.py` are in `make test`. ``python -m tests.release`` is the whole check of `make
release`: it builds, checks, installs into an empty environment, and trains there from an empty folder.
"""
