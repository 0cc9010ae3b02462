"""Optimizers in shards over two processes, compared with whole ones and with torch's."""
