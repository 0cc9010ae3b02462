"""A rank that finds the same GPU as all others: refused, and accepted where sharing is allowed."""

import os
import sys

import strategies
from strategies.topology import gpus

gpus.used_gpus = lambda: ["GPU-the-only-one"]
make = getattr(strategies, sys.argv[1])
# The user of a notebook may try a second time.
for said in ("refused", "again refused"):
    try:
        make()
    except ValueError as error:
        print(f"{said}: {error}", flush=True)
if sys.argv[1] == "HorovodStrategy":
    os.environ[gpus.SHARING_VARIABLE] = "1"
    print(f"made with {make().num_replicas_in_sync} replicas", flush=True)
