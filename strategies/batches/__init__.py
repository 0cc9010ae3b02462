"""The global batch: who reads which of its rows, prefetching, and what rows weigh in sums and means."""
