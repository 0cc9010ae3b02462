"""Loads a preset of KerasHub into a split model: each process reads and holds only its own part."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from keras_ext.presets.hub_loaders import read_lazily
from keras_ext.presets.verdict import agree, described
from keras_ext.tensor.parallelize import parallelize
from strategies import layer_api

_logger = logging.getLogger(__name__)


def from_preset(
    task_class: Any, preset: str | os.PathLike[str], split: Callable[[Any], Any] | None = None, **kwargs: Any
) -> Any:
    """Returns a model of a preset whose weights go straight from files into the shards of the strategy in scope.

    It replaces ``split(task_class.from_preset(preset, **kwargs))``, and returns the same. But there, each process first
    holds the whole model. Here the model that `split` gets has shapes, and its weights are still in their files; a
    process reads of each tensor what it keeps, one tensor after the other, and holds no more than its part and one
    tensor. Every byte is read from the disk once on each host: the first process that reads it leaves it in the
    system's page cache for the others. All processes call this function, each with the folder on its own disk.

    It takes KerasHub's own presets, in one or several files, and folders in the layout of model hubs, whose tensors
    KerasHub's converters transpose, slice and join: of these a process holds the joined tensor, and its sources, while
    it cuts its part. Weights that converters set in other ways are whole until they are cut.

    On a mesh without "tensor" and "pipe" there is nothing to split, and the model is ``task_class.from_preset(...)``;
    with ``shard="weights"`` each device keeps its shard of one weight after the other. There, this function only adds
    the check of the files.

    Args:
        task_class: a task or backbone of KerasHub, such as ``keras_hub.models.CausalLM``.
        preset: a folder, or whatever else ``task_class.from_preset`` takes.
        split: takes the model and returns the split one, such as ``lambda task: keras_ext.PipelineModel(
            keras_ext.parallelize(task), num_microbatches=8)``; it may also add adapters or quantize. Default:
            :func:`parallelize`. The model that it gets is not to be used afterwards.
        **kwargs: those of ``task_class.from_preset``.

    Raises:
        ValueError: tensors of the preset are missing, of another shape or, in KerasHub's own format, not of this
            model: all of them are named, on all processes; or the mesh has "pipe", and there is no `split`.

    Example:

        import keras_hub

        sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64}
        keras_hub.models.GPT2Backbone(vocabulary_size=64, **sizes).save_to_preset("preset")

        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2})
        with strategy.scope():
            model = keras_ext.from_preset(keras_hub.models.CausalLM, "preset", preprocessor=None)
            model.backbone.enable_lora(4)
    """
    mesh = layer_api.replica_parts().mesh
    preset = os.fspath(preset)
    load = functools.partial(task_class.from_preset, preset, **kwargs)
    if mesh.axis_size("tensor") == mesh.axis_size("pipe") == 1:
        with layer_api.global_state_kept():
            _load_unread(task_class, preset, load)
        model = load()
        return model if split is None else split(model)
    if split is None and mesh.axis_size("pipe") > 1:
        raise ValueError(
            "A preset is loaded into the stages of a pipeline that the argument split makes, such as split=lambda "
            "task: keras_ext.PipelineModel(keras_ext.parallelize(task), num_microbatches=8). Received: split=None on a "
            f"mesh with 'pipe' of size {mesh.axis_size('pipe')}."
        )
    task = _load_unread(task_class, preset, load)
    model = (split or parallelize)(task)
    if set(map(id, model.variables)) & set(map(id, task.variables)):
        raise ValueError(
            "split returns a split copy of the model that it gets, as keras_ext.parallelize does. Received: a model "
            f"{model.name!r} with variables of the model itself."
        )
    layer_api.draw_values(model.variables)
    return model


def _load_unread(task_class: Any, preset: str, load: Callable[[], Any]) -> Any:
    """Returns the model of a preset with its weights left in their files.

    Raises:
        ValueError: the files do not fit the model, on this process or another one.
    """
    made: list[Any] = []
    text = ""
    try:
        with layer_api.weights_left_in_files() as loading, read_lazily(task_class) as files:
            made.append(load())
        text = described(loading.close())
        extra = {name: shape for file in files for name, shape in file.unused().items()}
        if extra and layer_api.replica_parts().rank == 0:
            _logger.warning("%r has tensors that no weight of the model takes: %s.", preset, ", ".join(sorted(extra)))
    except Exception as error:
        # The other processes wait for this one's verdict.
        text = _all_that_differs(task_class, load)
        agree(preset, text or f"{type(error).__name__}: {error}", error, is_known=not text)
    agree(preset, text)
    return made[0]


def _all_that_differs(task_class: Any, load: Callable[[], Any]) -> str:
    """Loads a preset again, and describes everything that is wrong with its files; "" if they fit the model."""
    end = ""
    with layer_api.global_state_kept(), layer_api.weights_left_in_files(collects=True) as loading:
        try:
            with read_lazily(task_class, loading.differences):
                load()
        except Exception as error:
            # The rest of the preset is not compared.
            end = f"\n{type(error).__name__}: {error}"
        found = described(loading.close())
        return found and found + end
