"""ParameterServerStrategy, which is refused: its name is here so that the refusal says what to use."""

from __future__ import annotations

from typing import NoReturn


class ParameterServerStrategy:
    """Is refused: asynchronous updates never equal those of one device.

    The workers of ``tf.distribute.ParameterServerStrategy`` do not wait for each other. Each computes gradients with
    the weights that it happened to read, and they are applied one by one in the order of arrival: another order in
    every run, and never the numbers of one device, which this package promises.

    What it is used for has synchronous equivalents: ``CentralStorageStrategy`` for tables of embeddings that are too
    large for a GPU, ``MultiWorkerMirroredStrategy`` and ``HorovodStrategy`` for several machines, and their
    ``mesh={"tensor": ...}`` for models that do not fit into one device.

    Raises:
        NotImplementedError: always.

    Example:

        try:
            strategies.ParameterServerStrategy()
        except NotImplementedError as error:
            print(error)

    Source: https://www.tensorflow.org/tutorials/distribute/parameter_server_training
    """

    def __new__(cls, *args: object, **kwargs: object) -> NoReturn:
        """Raises the refusal."""
        raise NotImplementedError(
            "ParameterServerStrategy is asynchronous: workers apply gradients of weights that others have changed "
            "since, in the order of arrival, so its results never equal those of one device. Use "
            "strategies.CentralStorageStrategy for embedding tables that are too large for a GPU; "
            "strategies.MultiWorkerMirroredStrategy or strategies.HorovodStrategy for several machines; and their "
            "mesh={'tensor': ...} for models that do not fit into one device. "
            f"Received: {len(args) + len(kwargs)} arguments."
        )
