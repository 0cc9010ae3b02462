"""Tests of the pages in `docs/`; the examples that these speak of are put on the path here."""

from tests import examples as examples
