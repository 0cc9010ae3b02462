#!/bin/bash
# Trains handwritten digits with Horovod over Open MPI, and starts again after a failure. From the root of the repository:
#     deploy/mpi/run.sh -np 2 -- --epochs=15
#     deploy/mpi/run.sh -np 8 -H node0:4,node1:4 -- --epochs=15
# Arguments before -- go to mpirun, those after it to the program.
# Restarts after failures: MAX_RESTARTS, 3 by default. SIGTERM to this script: all ranks save, and it ends with 75; they have
# SAVE_SECONDS for it, 15 by default.

to_mpirun=()
while (($#)) && [[ $1 != -- ]]; do
  to_mpirun+=("$1")
  shift
done
shift

run_dir=${RUN_DIR:-runs/mpi}
save_seconds=${SAVE_SECONDS:-15}
program=examples/mnist/main.py
asked_to_end=
# The ranks of this node get SIGTERM, and all ranks save and end with 75. mpirun itself would end with 1.
trap 'asked_to_end=yes; pkill -TERM --parent "$child" --full "$program" || kill -TERM "$child"' TERM

for ((restart = 0; ; restart++)); do
  # No binding: each process has several threads. mpirun waits for $save_seconds from SIGTERM to SIGKILL, not for one second:
  # ranks save then. The peers of a lost rank get the same signals, but cannot save, and end after twice that time.
  mpirun --bind-to none --mca odls_base_sigkill_timeout "$save_seconds" "${to_mpirun[@]}" \
    "${PYTHON:-python3}" "$program" --strategy=horovod \
    --run_dir="$run_dir" --checkpoint_steps=10 --verbose=2 "$@" &
  child=$!
  wait "$child"
  code=$?
  # A signal interrupts `wait`: mpirun still runs then.
  while kill -0 "$child" 2> /dev/null; do
    wait "$child"
    code=$?
  done
  echo "run.sh: mpirun ended with $code after $restart restarts" >&2
  # A program that fails before its first checkpoint may be wrong, and is not started again.
  if [[ -n $asked_to_end ]] || ((code == 0 || restart >= ${MAX_RESTARTS:-3})) ||
    ! compgen -G "$run_dir/checkpoints/*" > /dev/null; then
    exit "$code"
  fi
done
