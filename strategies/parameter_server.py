"""ParameterServerStrategy, which is not supported: the name exists so that its error names the alternatives."""

from __future__ import annotations

from typing import NoReturn


class ParameterServerStrategy:
    """Not supported, raises an error: asynchronous updates never equal those of one device.

    The workers of ``tf.distribute.ParameterServerStrategy`` do not wait for each other. Each computes gradients with
    the weights that it happened to read, and the gradients are applied one by one in the order of arrival. That order
    differs in every run, and the results never equal those of one device, which this package promises.

    Its uses have synchronous equivalents: ``CentralStorageStrategy`` for embedding tables that are too large for a
    GPU, ``MultiWorkerMirroredStrategy`` and ``HorovodStrategy`` for several machines, and their
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
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "ParameterServerStrategy is asynchronous: workers apply gradients of weights that others have changed "
            "since, in the order of arrival, so its results never equal those of one device. Use "
            "strategies.CentralStorageStrategy for embedding tables that are too large for a GPU; "
            "strategies.MultiWorkerMirroredStrategy or strategies.HorovodStrategy for several machines; and their "
            "mesh={'tensor': ...} for models that do not fit into one device. "
            f"Received: {len(args) + len(kwargs)} arguments."
        )
