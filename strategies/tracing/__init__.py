"""One timeline of all ranks: records some steps of a running job, and merges the records of all ranks into one file.

`profile` reads the file of TensorFlow's profiler, and `recording` records the steps of this process. All others are
pure: a process without TensorFlow can merge records.
"""
