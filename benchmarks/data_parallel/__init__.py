"""Images per second of data parallelism over processes, beside what the machine could do."""
