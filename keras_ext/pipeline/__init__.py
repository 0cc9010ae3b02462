"""Pipeline parallelism: models are cut into stages on the devices of the mesh axis "pipe".

The tables of `strategies.schedules` define what runs when and where; `model_graph`, `graph_partition`, `layer_costs`
and `stage` cut a model; `model` and `executor` run it, and `timeline` shows what ran.
Public names are in `keras_ext`.
"""
