"""Pipeline parallelism: models are cut into stages on the devices of the mesh axis "pipe".

Pure tables (`schedule`, `schedules`, `messages`, `validation`, `partition`, `timeline`, `svg_chart`) define what runs
when and where; `model_graph`, `graph_partition`, `layer_costs` and `stage` cut a model; `model` and `executor` run it.
Public names are in `keras_ext`.
"""
