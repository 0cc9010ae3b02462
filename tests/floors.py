"""The rooms of the code base and their allowed imports, and a checker that reads imports without running them.

A module belongs to the first room that names it or a package above it. Imports inside functions and under
`if TYPE_CHECKING` count like any other.
"""

import ast
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("strategies", "keras_ext", "examples", "benchmarks")


@dataclass(frozen=True)
class Room:
    """A group of modules with the same rights.

    `third_party` lists the allowed packages from outside, `rooms` the allowed rooms of ours by name (a room's own name
    allows its modules to import each other). A room with `public_only` may also import the names in the `__all__` of
    `strategies` and `keras_ext`.
    """

    name: str
    floor: int
    modules: tuple[str, ...]
    third_party: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()
    public_only: bool = False


PROGRAM_PACKAGES = (
    "numpy",
    "tensorflow",
    "keras",
    "absl",
    "sklearn",
    "h5py",
    "PIL",
    "sentencepiece",
    "keras_hub",
    "tokenizers",
)

# In the order of lookup: the exceptions before the packages that contain them.
ROOMS = (
    Room(
        "row values",
        0,
        (
            "strategies.batches.row_arithmetic",
            "strategies.batches.row_divisors",
            "strategies.batches.row_gathers",
            "strategies.batches.row_kinds",
            "strategies.batches.row_layouts",
            "strategies.batches.row_names",
            "strategies.batches.row_order",
            "strategies.batches.row_positions",
            "strategies.batches.row_plans",
            "strategies.batches.row_rules",
            "strategies.batches.row_shapes",
            "strategies.batches.row_shards",
        ),
        (),
        ("row values",),
    ),
    Room("buckets", 0, ("strategies.buckets",), rooms=("buckets",)),
    # Standard library only: the help of every tool is printed at once.
    Room("command line", 0, ("strategies.command_line",)),
    Room("list of tools", 5, ("strategies.__main__",), rooms=("command line", "front door")),
    Room(
        "dry run",
        0,
        ("strategies.planning.dry_run",),
        rooms=("command line", "plans", "buckets", "schedule", "topology", "text tables", "dry run"),
    ),
    Room("division", 0, ("strategies.evenly",)),
    Room("frozen context", 0, ("strategies.frozen_context",)),
    Room("plans", 0, ("strategies.planning",), rooms=("schedule", "text tables", "charts", "plans")),
    Room("planner", 0, ("strategies.plan",), rooms=("command line", "plans", "dry run")),
    Room("files", 0, ("strategies.atomic_file",)),
    Room("operation names", 0, ("strategies.op_names.names",)),
    Room(
        "trace values",
        0,
        (
            "strategies.tracing.alignment",
            "strategies.tracing.axes",
            "strategies.tracing.chrome",
            "strategies.tracing.events",
            "strategies.tracing.intervals",
            "strategies.tracing.job_trace",
            "strategies.tracing.lanes",
            "strategies.tracing.collective_runs",
            "strategies.tracing.picture",
            "strategies.tracing.reading",
            "strategies.tracing.summaries",
        ),
        rooms=("files", "text tables", "charts", "topology", "operation names", "trace values"),
    ),
    Room("operation scopes", 1, ("strategies.op_names",), ("tensorflow",), ("operation names",)),
    Room("text tables", 0, ("strategies.text_table",)),
    Room("comparison", 0, ("strategies.comparison",), rooms=("text tables",)),
    Room("charts", 0, ("strategies.svg_chart",)),
    Room("schedule", 0, ("strategies.schedules",), rooms=("division", "text tables", "schedule")),
    Room(
        "timeline",
        0,
        ("keras_ext.pipeline.timeline",),
        rooms=("charts", "text tables", "schedule"),
    ),
    Room("versions", 0, ("strategies.versions",)),
    Room("cuda version", 0, ("strategies.cuda_version",)),
    Room(
        "setup",
        0,
        ("strategies.install_horovod", "strategies._horovod_recipe", "strategies._horovod_gpu"),
        rooms=("command line", "cuda version", "files", "setup"),
    ),
    Room("control plane", 0, ("strategies.control_plane",), rooms=("port users", "rank end", "control plane")),
    # The launcher also starts without numpy.
    Room("cores", 0, ("strategies.topology.cores",)),
    # Standard library only: the launcher and its ranks read the same variables.
    Room("platforms", 0, ("strategies.topology.platforms",)),
    # Standard library only: any module that finds a port in use may report the process that holds it.
    Room("port users", 0, ("strategies.topology.port_users",)),
    # Standard library only: the launcher and its ranks share it.
    Room("rank end", 0, ("strategies.topology.rank_end",)),
    # Standard library only: launchers and ranks fill it, and the command that shows a job starts fast.
    Room(
        "monitoring",
        0,
        ("strategies.monitoring", "strategies.status"),
        rooms=("command line", "files", "text tables", "control plane", "trace values", "monitoring"),
    ),
    Room(
        "launcher",
        0,
        ("strategies.launch", "strategies.launching"),
        rooms=(
            "command line",
            "cores",
            "platforms",
            "port users",
            "rank end",
            "control plane",
            "monitoring",
            "launcher",
        ),
    ),
    Room(
        "devices",
        1,
        (
            "strategies.topology.devices",
            "strategies.topology.gpus",
            "strategies.topology.threads",
            "strategies.topology.xla_support",
        ),
        ("tensorflow",),
        ("cores", "cuda version", "topology", "devices"),
    ),
    Room("topology", 0, ("strategies.topology",), ("numpy",), ("platforms", "topology")),
    Room("internals", 1, ("strategies._tf_internals",), ("tensorflow",)),
    Room(
        "horovod",
        1,
        ("strategies.collectives.horovod",),
        ("tensorflow", "horovod"),
        ("topology", "devices", "control plane", "collectives", "horovod"),
    ),
    Room(
        "tf runtime",
        1,
        ("strategies.collectives.tf_runtime",),
        ("tensorflow",),
        ("topology", "devices", "internals", "control plane", "collectives", "tf runtime"),
    ),
    Room(
        "collectives",
        1,
        ("strategies.collectives",),
        ("tensorflow",),
        ("topology", "control plane", "buckets", "operation names", "operation scopes", "collectives"),
    ),
    Room(
        "batches",
        2,
        ("strategies.batches",),
        ("numpy", "tensorflow"),
        ("division", "frozen context", "row values", "cores", "topology", "internals", "collectives", "batches"),
    ),
    Room(
        "replica",
        2,
        ("strategies.replica",),
        ("numpy", "tensorflow"),
        (
            "frozen context",
            "row values",
            "plans",
            "topology",
            "devices",
            "internals",
            "collectives",
            "batches",
            "replica",
        ),
    ),
    Room(
        "steps",
        2,
        ("strategies.steps",),
        ("numpy", "tensorflow"),
        (
            "row values",
            "rank end",
            "devices",
            "internals",
            "buckets",
            "control plane",
            "collectives",
            "batches",
            "replica",
            "operation scopes",
            "steps",
        ),
    ),
    Room(
        "sharding",
        2,
        ("strategies.sharding",),
        ("numpy", "tensorflow"),
        (
            "row values",
            "plans",
            "topology",
            "internals",
            "buckets",
            "collectives",
            "batches",
            "replica",
            "steps",
            "operation scopes",
            "sharding",
        ),
    ),
    Room(
        "engine",
        2,
        ("strategies.engine",),
        ("numpy", "tensorflow"),
        (
            "topology",
            "devices",
            "internals",
            "control plane",
            "monitoring",
            "collectives",
            "batches",
            "row values",
            "replica",
            "steps",
            "sharding",
            "engine",
        ),
    ),
    Room(
        "saving",
        2,
        ("strategies.saving",),
        ("numpy", "tensorflow", "h5py"),
        ("files", "collectives", "replica", "steps", "sharding", "engine", "saving"),
    ),
    Room(
        "convert",
        3,
        ("strategies.convert", "strategies.converting"),
        ("numpy", "tensorflow", "h5py", "tensorstore"),
        ("command line", "files", "replica", "saving", "convert"),
    ),
    Room(
        "tracing",
        2,
        ("strategies.tracing",),
        ("tensorflow",),
        ("topology", "collectives", "steps", "engine", "trace values", "tracing"),
    ),
    Room(
        "keras hooks",
        2,
        ("strategies._keras_hooks",),
        ("numpy", "tensorflow", "keras"),
        (
            "comparison",
            "rank end",
            "versions",
            "row values",
            "topology",
            "internals",
            "control plane",
            "monitoring",
            "collectives",
            "batches",
            "replica",
            "steps",
            "sharding",
            "engine",
            "saving",
            "tracing",
            "keras hooks",
        ),
    ),
    Room(
        "layer api",
        3,
        ("strategies.layer_api",),
        ("keras",),
        (
            "plans",
            "control plane",
            "rank end",
            "batches",
            "replica",
            "engine",
            "saving",
            "convert",
            "monitoring",
            "operation scopes",
            "tracing",
            "keras hooks",
        ),
    ),
    Room(
        "strategy",
        3,
        (
            "strategies.central_storage",
            "strategies.mirrored",
            "strategies.parameter_server",
            "strategies.multi_worker_mirrored",
            "strategies.horovod",
        ),
        ("tensorflow",),
        (
            "versions",
            "control plane",
            "topology",
            "devices",
            "internals",
            "collectives",
            "tf runtime",
            "horovod",
            "replica",
            "engine",
            "keras hooks",
        ),
    ),
    # A program; it is part of the library because it is started by its module name.
    Room(
        "doctor",
        5,
        ("strategies.doctor", "strategies.doctoring"),
        ("numpy", "tensorflow", "keras"),
        (
            "command line",
            "control plane",
            "topology",
            "devices",
            "cores",
            "setup",
            "cuda version",
            "versions",
            "front door",
            "doctor",
        ),
    ),
    # The description needs no Keras; the callback that triggers faults does.
    Room(
        "fault plans",
        0,
        (
            "strategies.testing.faults.plan",
            "strategies.testing.faults.record",
            "strategies.testing.faults.striking",
            "strategies.testing.faults.writes",
        ),
        rooms=("fault plans",),
    ),
    Room("testing", 5, ("strategies.testing",), ("keras",), ("topology", "fault plans", "testing")),
    Room("exactness", 1, ("strategies.exactness",), ("tensorflow",)),
    Room("elastic", 3, ("strategies.elastic",), ("keras",), ("horovod",)),
    Room(
        "front door",
        3,
        ("strategies",),
        rooms=(
            "comparison",
            "control plane",
            "topology",
            "batches",
            "replica",
            "steps",
            "engine",
            "saving",
            "exactness",
            "strategy",
            "elastic",
        ),
    ),
    Room(
        "layers",
        4,
        ("keras_ext",),
        ("numpy", "keras"),
        (
            "division",
            "plans",
            "files",
            "text tables",
            "trace values",
            "schedule",
            "timeline",
            "layer api",
            "elastic",
            "layers",
        ),
        public_only=True,
    ),
    # They switch off what users cannot, and time what is TensorFlow's own, to measure what each part costs.
    Room(
        "switches of benchmarks",
        4,
        ("benchmarks.mirrored.switches", "benchmarks.first_step.function_calls"),
        ("tensorflow",),
        ("internals", "batches", "collectives"),
    ),
    # Benchmarks also run the libraries that they compare with.
    Room(
        "benchmarks",
        5,
        ("benchmarks",),
        (*PROGRAM_PACKAGES, "horovod", "torch"),
        ("benchmarks", "switches of benchmarks"),
        public_only=True,
    ),
    Room("programs", 5, ("examples",), PROGRAM_PACKAGES, ("programs",), public_only=True),
)

# Only the rooms named here may import these, whatever else the table allows.
RESERVED = {
    "horovod": ("horovod", "benchmarks"),
    "tensorflow.python": ("internals",),
    # `addresses` finds them by name.
    "keras.src": (),
}


def modules() -> Iterator[tuple[str, Path]]:
    """Yields every Python file of ours outside the tests, with its dotted name."""
    for package in PACKAGES:
        for path in sorted([*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.pyi")]):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def program_folders() -> frozenset[str]:
    """Returns the folders of examples and benchmarks: their programs import their own parts as `mnist.data`."""
    return frozenset(path.name for package in ("examples", "benchmarks") for path in (ROOT / package).glob("*/"))


def room_of(module: str) -> Room | None:
    """Returns the room of `module`, None if the table has none.

    The front door is `strategies/__init__.py` alone: a new file beside it needs its own entry in the table.
    """
    for room in ROOMS:
        for name in room.modules:
            if module == name or (name != "strategies" and module.startswith(f"{name}.")):
                return room
    return None


def public_names(package: str) -> frozenset[str]:
    """Returns the names in the package's stub, else in `__all__` of its `__init__.py`; none if it has neither."""
    stub = ROOT / package / "__init__.pyi"
    if stub.exists():
        return frozenset(target.rpartition(".")[2] for _, target in imports(stub.read_text(), package, is_package=True))
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return frozenset(ast.literal_eval(node.value))
    return frozenset()


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yields line and dotted name of everything that `source` imports; `from a import b` counts as `a.b`."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                drop = node.level - is_package
                base = module.split(".")
                origin = ".".join(base[: len(base) - drop] + ([node.module] if node.module else []))
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in bound & {
            "strategies",
            "keras_ext",
        }:
            # `strategies.topology.mesh` after `import strategies` counts as an import of it.
            yield node.lineno, ast.unparse(node)


def arrows(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """Returns the modules of ours that each module imports: at its top, in functions, and for types only.

    Args:
        sources: by dotted name, the file's text, and whether it is the `__init__.py` of a package.
    """
    found = {}
    for module, (source, is_package) in sources.items():
        targets = (target for _, target in imports(source, module, is_package=is_package))
        found[module] = {origin for target in targets if (origin := _origin(target, sources))} - {module}
    return found


def _origin(target: str, known: Container[str]) -> str | None:
    """Returns the module that `target` is, or that has the name; None if it is none of ours."""
    above = target.rpartition(".")[0]
    # Programs import their own parts as `mnist.data`.
    candidates = [prefix + name for prefix in ("", "examples.", "benchmarks.") for name in (target, above)]
    return next((name for name in candidates if name in known), None)


def in_circles(arrows: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the names on import cycles, and the names on paths from one cycle to another."""
    left = {name: set(targets) & arrows.keys() for name, targets in arrows.items()}
    while True:
        reached = set().union(*left.values())
        inside = {name: targets & left.keys() for name, targets in left.items() if targets and name in reached}
        if inside == left:
            return set(left)
        left = inside


def violations(module: str, source: str, *, known: Iterable[str], is_package: bool = False) -> Iterator[str]:
    """Yields one sentence for each import of `source`, the file of `module`, that the table forbids.

    `known` are the dotted names of all our modules; they distinguish a module from a name in it.
    """
    room = room_of(module)
    if room is None:
        yield f"{module} belongs to no room: name it in ROOMS"
        return
    known = frozenset(known)
    for line, target in imports(source, module, is_package=is_package):
        if target.partition(".")[0] in sys.stdlib_module_names:
            continue
        reason = _forbidden(room, target, known)
        if reason:
            yield f"{module}:{line} ({room.name}, floor {room.floor}) imports {target}: {reason}"


def _forbidden(room: Room, target: str, known: frozenset[str]) -> str | None:
    for name, owners in RESERVED.items():
        if f"{target}.".startswith(f"{name}."):
            return None if room.name in owners else f"only the rooms {list(owners)} may"
    top = target.partition(".")[0]
    if room.name in ("programs", "benchmarks") and top in program_folders():
        return None
    if top not in PACKAGES:
        return None if top in room.third_party else f"allowed from outside are {list(room.third_party)}"
    package, _, name = target.rpartition(".")
    if room.public_only and package == top in ("strategies", "keras_ext") and name in public_names(top):
        # A module may have the name of the function that it defines.
        return None
    origin = target if target in known else target.rpartition(".")[0] or target
    owner_room = room_of(origin)
    if owner_room is not None and owner_room.name in room.rooms:
        return None
    if room.public_only and origin == top and top in ("strategies", "keras_ext"):
        is_public = target == top or target.rpartition(".")[2] in public_names(top)
        return None if is_public else f"it is not in {top}.__all__"
    return f"allowed are the rooms {list(room.rooms)}"
