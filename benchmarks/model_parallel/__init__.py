"""One model over two processes, as stages and as shards, against torch and against one process of two devices."""
