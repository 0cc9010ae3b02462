"""Classes of pipelines that are models of a user's class, too, such as tasks of KerasHub."""

from __future__ import annotations

import functools
from typing import Any

import keras

from keras_ext.pipeline.generation import methods_of
from keras_ext.tensor.custom_layers import is_graph, is_keras_class
from strategies import layer_api


class StagedModel:
    """Base of the classes that `staged_class` creates, which have the methods of a pipeline and of a user's class.

    A model has the attributes of the one that it was made of, such as ``backbone`` and ``preprocessor`` of a task, and
    is saved as a model of the user's class.
    """

    #: The user's class.
    plain_class: Any = None

    def _config_of_plain_model(self) -> dict[str, Any]:
        config: dict[str, Any] = self.plain_class.get_config(self)
        return config

    def __reduce__(self) -> Any:
        """Returns what pickles hold: the user's class, which can be imported, in place of this one."""
        reduced: Any = super().__reduce__()
        load, arguments = reduced
        return getattr(self.plain_class, load.__name__), arguments

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Creates a pipeline with the same number of stages, cut at the same layers, with its own weights."""
        with keras.saving.CustomObjectScope(custom_objects or {}):
            return cls(**{**config, "model": cls.plain_class.from_config(config["model"])})


def has_own_class(model: Any) -> bool:
    """Returns True if `model` is a Functional model of a user's class."""
    return is_graph(model) and not isinstance(model, keras.Sequential) and not is_keras_class(model.__class__)


@functools.cache
def staged_class(pipeline_class: Any, plain_class: Any) -> Any:
    """Returns a subclass of both classes, whose models are saved as models of `plain_class`.

    Args:
        pipeline_class: the class of pipelines.
        plain_class: a user's class of Functional models.
    """
    names = {
        "__module__": pipeline_class.__module__,
        "__qualname__": f"{pipeline_class.__qualname__}[{plain_class.__qualname__}]",
        "__doc__": pipeline_class.__doc__,
        "plain_class": plain_class,
        **methods_of(plain_class),
    }
    made = type(plain_class.__name__, (StagedModel, pipeline_class, plain_class), names)
    return layer_api.saved_as(plain_class)(made)
