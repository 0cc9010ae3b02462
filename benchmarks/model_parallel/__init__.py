"""One model over two processes, stage by stage and shard by shard, beside torch and one process of two devices."""
