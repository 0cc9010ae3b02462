"""The devices of one replica, as layers see them: owned parts, forward and backward passes, split weights, memory."""
