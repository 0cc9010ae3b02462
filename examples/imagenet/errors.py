"""The error about the images, with one line for the user."""


class DataError(ValueError):
    """The images could not be found, read or written; the message is one line that can be shown as it is."""
