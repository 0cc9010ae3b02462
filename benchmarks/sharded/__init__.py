"""Sharded optimizers over two processes, compared with replicated ones and with torch's."""
