"""Pipeline schedules as tables: what each device computes and sends, in order. Pure: standard library only.

`schedule` is a table with its times, `named` and `v_shaped` make the tables, `messages` adds sends and receives,
`validation` refuses tables that cannot run, and `partition` cuts a chain of layers into stages. `keras_ext.pipeline`
executes the tables; `strategies.planning` computes their times and checks them without executing them.
"""

from strategies.schedules.messages import Traffic, with_messages
from strategies.schedules.named import SCHEDULES
from strategies.schedules.partition import Cost, Partition
from strategies.schedules.schedule import Action, Kind, Schedule
from strategies.schedules.stage_placement import StagePlacement
from strategies.schedules.validation import validate

__all__ = [
    "SCHEDULES",
    "Action",
    "Cost",
    "Kind",
    "Partition",
    "Schedule",
    "StagePlacement",
    "Traffic",
    "validate",
    "with_messages",
]
