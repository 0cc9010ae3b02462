"""The parts of the launcher, with the standard library only. The command is `strategies.launch`.

Nodes meet (`nodes`: `gathering` on node 0, `joining` on others) and stay linked (`links`, over `wire`). Each runs its
ranks (`agent`, `processes`, `output`), reports what happens, and obeys node 0 (`messages`), where the `coordinator`
decides. The end of the job is put into words in `verdict`.
"""
