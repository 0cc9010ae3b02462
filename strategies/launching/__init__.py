"""The parts of the launcher, each of the standard library only. The command is `strategies.launch`."""
