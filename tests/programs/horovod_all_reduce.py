"""All-reduces one tensor under `horovodrun`, eagerly and in a tf.function, and says what each rank got."""

import horovod.tensorflow as hvd
import tensorflow as tf


def main() -> None:
    """Sums (rank + 1) * [1, 2, 3] over all ranks and compares with the closed form."""
    hvd.init()
    values = tf.constant([1.0, 2.0, 3.0])
    mine = values * (hvd.rank() + 1)
    expected = (values * hvd.size() * (hvd.size() + 1) / 2).numpy().tolist()

    eager = hvd.allreduce(mine, op=hvd.Sum, name="eager").numpy().tolist()
    traced = tf.function(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, name="traced"))
    graph = traced(mine).numpy().tolist()
    if eager != expected or graph != expected:
        raise SystemExit(f"rank {hvd.rank()}: expected {expected}, received {eager} (eager) and {graph} (graph)")
    # One write per line: the lines of several ranks share a pipe.
    print(f"rank {hvd.rank()} of {hvd.size()}: {eager}\n", end="", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
