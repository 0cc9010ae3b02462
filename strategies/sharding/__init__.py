"""ZeRO: optimizer state, gradients and weights sharded over the data axis.

`partition` decides which replica owns which slice. `updates` reduces gradients to the owners, which update their slices
(ZeRO-1 and 2). `creation`, `variables` and `gathers` keep weights as shards, and all-gather them while a step uses them
(ZeRO-3).
"""
