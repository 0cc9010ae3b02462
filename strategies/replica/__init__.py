"""The devices of one replica, as layers see them: owned parts, passes forward and back, split weights, memory."""
