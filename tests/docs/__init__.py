"""Tests of the pages in `docs/`; the examples in these pages are added to the path here."""

from tests import examples as examples
