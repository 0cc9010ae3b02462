"""Images per second of data parallelism over processes, compared with the throughput of independent processes."""
