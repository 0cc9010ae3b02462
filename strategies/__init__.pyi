"""The public names of `strategies`, for type checkers: `__init__.py` has the same, and imports each on first use."""

from strategies import elastic as elastic
from strategies.batches.row_warnings import DifferenceWarning as DifferenceWarning
from strategies.batches.row_warnings import strict as strict
from strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
from strategies.comparison import ComparedValue as ComparedValue
from strategies.comparison import Comparison as Comparison
from strategies.control_plane import DistributedError as DistributedError
from strategies.engine.strategy import Finding as Finding
from strategies.exactness import exact as exact
from strategies.horovod import HorovodStrategy as HorovodStrategy
from strategies.mirrored import MirroredStrategy as MirroredStrategy
from strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from strategies.parameter_server import ParameterServerStrategy as ParameterServerStrategy
from strategies.replica.memory import bytes_per_device as bytes_per_device
from strategies.replica.memory import peak_bytes_per_device as peak_bytes_per_device
from strategies.saving.restoring import load_on_all as load_on_all
from strategies.saving.restoring import sum_accumulated as sum_accumulated
from strategies.steps.row_gathers import gather_rows as gather_rows
from strategies.steps.row_gathers import global_rows as global_rows
from strategies.steps.waiting import SecondsWaited as SecondsWaited
from strategies.steps.waiting import measure_communication as measure_communication
from strategies.steps.waiting import seconds_waited as seconds_waited
from strategies.topology.cluster import Cluster as Cluster
from strategies.topology.mesh import DeviceMesh as DeviceMesh

__version__: str
__all__: list[str]
