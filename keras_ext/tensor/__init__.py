"""Layers whose weights are split over the devices of the mesh axis "tensor", and functions that split a plain model.

`mappings` moves tensors between shards, `split_tensor` is a tensor in pieces, `layer` the base of all layers here;
`plan` chooses the splits, `parallelize` replaces layers. Public names are in `keras_ext`.
"""
