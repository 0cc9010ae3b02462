"""Reports and jobs for the tests."""

from __future__ import annotations

from dataclasses import replace

from strategies.monitoring.reports import JobState, LauncherReport, RankProcess, RankReport

#: A rank in the middle of a training.
RANK = RankReport(
    rank=0,
    world_size=2,
    host="node-a",
    pid=41,
    call="fit",
    epoch=3,
    epochs=10,
    step=50,
    steps_per_epoch=100,
    total_steps=250,
    fraction=0.25,
    seconds_left=75.0,
    unit="images",
    units_per_second=1280.0,
    steps_per_second=10.0,
    waiting_input=0.125,
    waiting_others=0.5,
    memory_bytes=3 * 2**29,
    peak_memory_bytes=2**31,
    device_memory_bytes=2**33,
    peak_device_memory_bytes=2**34,
    can_record=True,
)
#: The same training's other rank, which has saved.
OTHER = replace(
    RANK, rank=1, pid=42, checkpoint='run/"last"', checkpoint_step=200, checkpoint_age_seconds=5.0, waiting_others=0.25
)
LAUNCHER = LauncherReport(
    node="node 0 (node-a)",
    state=JobState.RUNNING,
    world_size=2,
    num_restarts=1,
    max_restarts=3,
    processes=(RankProcess(0, 41), RankProcess(1, 42)),
    began=900.0,
    reason="rank 1 (pid 40) failed with signal SIGKILL (9); restart 1 of 3, with 2 processes.",
)
