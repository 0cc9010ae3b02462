"""The parts of the launcher, with the standard library only. The command is `strategies.launch`.

Nodes run a rendezvous (`nodes`) and stay connected (`links`), over the channels of `strategies.control_plane`. Each
launcher runs its ranks (`agent`, `processes`, `output`), sends events to node 0 and runs its commands (`messages`); the
`coordinator` on node 0 decides. `verdict` has the messages and exit codes for the end of the job.
"""
