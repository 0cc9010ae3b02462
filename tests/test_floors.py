"""Imports go down only, and every module has its room; the table is in floors.py."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.floors import ROOMS, ROOT, arrows, imports, in_circles, modules, room_of, violations

KNOWN = frozenset(name for name, _ in modules()) | {
    "strategies.schedules.schedule",
    "keras_ext.tensor.dense",
    "strategies.collectives.base",
    "strategies.layer_api",
    "strategies.collectives.horovod.collectives",
    "strategies.collectives.tf_runtime.collectives",
    "strategies.steps.step",
    "strategies.launch",
    "strategies.topology.mesh",
    "strategies.mirrored",
    "strategies.multi_worker_mirrored",
}

FORBIDDEN = [
    ("strategies.topology.mesh", "import tensorflow as tf"),
    ("strategies.topology.mesh", "import keras"),
    ("strategies.topology.cluster", "def f():\n    from tensorflow import config"),
    ("strategies.topology.cluster", "from strategies import engine"),
    ("strategies.topology.cores", "from .mesh import DeviceMesh"),
    ("strategies.schedules.schedule", "import keras"),
    ("strategies.install_horovod", "import numpy"),
    ("strategies.collectives.tf_runtime.collectives", "import horovod.tensorflow as hvd"),
    ("strategies.collectives.tf_runtime.collectives", "import importlib\nimportlib.import_module('horovod')"),
    ("strategies.collectives.tf_runtime.collectives", "from strategies.engine.engine import Engine"),
    ("strategies.steps.step", "from tensorflow.python.distribute import values"),
    ("strategies.steps.step", "from tensorflow import python"),
    ("strategies.steps.step", "import tensorflow.python.framework.ops"),
    ("strategies.steps.step", "import keras"),
    ("strategies.steps.step", "from strategies import MirroredStrategy"),
    ("strategies.mirrored", "from keras.src import backend"),
    ("strategies.mirrored", "from strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy"),
    ("strategies.horovod", "import horovod.tensorflow"),
    ("strategies.replica.parts", "from strategies import _keras_hooks"),
    ("strategies.batches.inputs", "from strategies.steps import step"),
    ("strategies.steps.step", "from strategies.sharding import units"),
    ("strategies.steps.step", "from strategies.engine import engine"),
    ("strategies.engine.engine", "from strategies.saving import restoring"),
    ("strategies.launch", "from .mirrored import MirroredStrategy"),
    ("keras_ext.tensor.dense", "import tensorflow as tf"),
    ("keras_ext.tensor.dense", "import jax"),
    ("keras_ext.tensor.dense", "from keras.src import layers"),
    ("strategies._keras_hooks.trainer", "from keras.src import backend"),
    ("keras_ext.tensor.dense", "from strategies.engine.engine import Engine"),
    ("keras_ext.tensor.dense", "from strategies.collectives.tf_runtime.collectives import TFCollectives"),
    ("examples.mnist.train", "from strategies.topology.mesh import DeviceMesh"),
    ("examples.mnist.train", "import strategies\nstrategies.engine.Engine"),
    ("examples.mnist.train", "from strategies import _private"),
    ("examples.mnist.train", "from keras import src"),
    ("strategies.nobody_placed_this", "import os"),
]

ALLOWED = [
    ("strategies.topology.mesh", "from __future__ import annotations\nimport itertools\nimport numpy as np"),
    ("strategies._tf_internals", "from tensorflow.python.distribute import values"),
    ("strategies.collectives.horovod.collectives", "import horovod.tensorflow as hvd\nfrom .base import Collectives"),
    (
        "strategies.collectives.tf_runtime.collectives",
        "from strategies.topology.mesh import DeviceMesh\nimport tensorflow as tf",
    ),
    ("strategies._keras_hooks.trainer", "from strategies._keras_hooks.addresses import backend\nimport keras"),
    ("strategies.mirrored", "from strategies.engine import replicated\nfrom strategies.collectives import tf_runtime"),
    ("strategies", "from strategies.mirrored import MirroredStrategy"),
    ("keras_ext.tensor.dense", "import keras\nfrom keras import ops\nfrom strategies import layer_api"),
    ("keras_ext.tensor.dense", "from strategies.layer_api import SplitWeight"),
    ("keras_ext.pipeline.model", "from strategies.schedules.schedule import actions\nfrom . import stage"),
    ("examples.mnist.train", "import keras\nimport strategies\nfrom absl import flags"),
    ("examples.mnist.train", "strategies = []\nstrategies.append(1)"),
]


@pytest.mark.parametrize(("module", "path"), [pytest.param(*place, id=place[0]) for place in modules()])
def test_imports_go_down_only(module: str, path: Path) -> None:
    is_package = path.stem == "__init__"
    found = list(violations(module, path.read_text(), known=KNOWN, is_package=is_package))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("module", "source"), FORBIDDEN)
def test_checker_reports(module: str, source: str) -> None:
    assert list(violations(module, source, known=KNOWN))


@pytest.mark.parametrize(("module", "source"), ALLOWED)
def test_checker_passes(module: str, source: str) -> None:
    assert not list(violations(module, source, known=KNOWN))


def test_rooms_import_from_their_own_floor_or_below() -> None:
    floors = {room.name: room.floor for room in ROOMS}
    assert len(floors) == len(ROOMS)
    for room in ROOMS:
        assert all(floors[name] <= room.floor for name in room.rooms), room


def test_rooms_are_granted_what_they_use_and_no_more() -> None:
    names = {name for name, _ in modules()}
    used: dict[str, set[str]] = {room.name: set() for room in ROOMS}
    for name, path in modules():
        room = room_of(name)
        assert room is not None
        for _, imported in imports(path.read_text(), name, is_package=path.name == "__init__.py"):
            module = imported if imported in names else imported.rpartition(".")[0]
            target = room_of(module) if module in names else None
            used[room.name].add(imported.split(".")[0] if target is None else target.name)
    # Programs import their own parts by other names, and share one list of packages.
    for room in ROOMS:
        if room.floor < 5 or not room.public_only:
            assert not {*room.third_party, *room.rooms} - used[room.name], room.name


def test_no_two_rooms_import_each_other_in_a_circle() -> None:
    assert not in_circles({room.name: set(room.rooms) - {room.name} for room in ROOMS})


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    found = arrows({name: (path.read_text(), path.name == "__init__.py") for name, path in modules()})
    inside = in_circles(found)
    assert not inside, "\n".join(f"{name} imports {sorted(found[name] & inside)}" for name in sorted(inside))


def test_no_two_folders_of_strategies_import_each_other_in_a_circle() -> None:
    found = arrows({name: (path.read_text(), path.name == "__init__.py") for name, path in modules()})
    folders: dict[str, set[str]] = {}
    for name, targets in found.items():
        if name.startswith("strategies."):
            folders.setdefault(_folder(name), set()).update(map(_folder, targets))
    assert not in_circles({name: targets - {name} for name, targets in folders.items()})


def _folder(module: str) -> str:
    """Returns the folder or file directly below the package."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize(
    ("sources", "inside"),
    [
        ({"strategies.a": "from strategies import b", "strategies.b": "from strategies.c import name"}, ""),
        ({"strategies.a": "import strategies.b", "strategies.b": "def f():\n    from strategies.a import name"}, "ab"),
        (
            {
                "benchmarks.x.a": "from x import b",
                "benchmarks.x.b": "if TYPE_CHECKING:\n    from x.c import Value",
                "benchmarks.x.c": "from . import b",
                "benchmarks.x.d": "import os",
            },
            "bc",
        ),
    ],
)
def test_circles_are_found_wherever_modules_import(sources: dict[str, str], inside: str) -> None:
    found = in_circles(arrows({name: (source, False) for name, source in sources.items()}))
    assert "".join(sorted(name[-1] for name in found)) == inside


def test_strategies_never_import_each_other() -> None:
    strategy = next(room for room in ROOMS if room.name == "strategy")
    assert "strategy" not in strategy.rooms
    assert all(room_of(module) is strategy for module in strategy.modules)


def repository_files() -> Iterator[Path]:
    """Yields the files that are or would be committed: no environments, caches, build outputs or git's own files."""
    skipped = {".git", "__pycache__", "build", "dist", "runs", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    for folder, subfolders, names in os.walk(ROOT):
        here = Path(folder)
        subfolders[:] = [
            name
            for name in subfolders
            if name not in skipped and not name.endswith(".egg-info") and not (here / name / "pyvenv.cfg").exists()
        ]
        yield from (here / name for name in names)


# Split in two, so that this file does not match itself.
HOSTS = ["pypi" + ".org", "python" + "hosted.org", "anaconda" + ".org", "test" + ".pypi"]
MACHINE_PATH = re.compile(rb"(?<![\w.])/" + rb"work/")


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in repository_files():
        text = path.read_bytes()
        found += [f"{path.relative_to(ROOT)}: {host}" for host in HOSTS if host.encode() in text]
        found += [f"{path.relative_to(ROOT)}: {match[0]!r}" for match in MACHINE_PATH.finditer(text)]
    assert not found, "\n".join(found)
