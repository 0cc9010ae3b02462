"""Keras layers that split a model across devices. None yet: see CHANGELOG.md for what each release adds."""
