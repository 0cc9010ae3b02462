"""Every command in docs/ that starts processes: the launchers' parsers accept it, and its mesh fits the processes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from unittest import mock

import pytest
from common.devices import devices_of_a_process, mesh_of

from strategies import doctor
from strategies.launching import flags as launcher_flags
from strategies.topology.cores import THREAD_VARIABLES
from strategies.topology.gpus import SHARING_VARIABLE
from strategies.topology.placement import mesh_over_processes
from tests.examples.test_commands import _telling, program_and_flags

DOCS = Path(__file__).parents[2] / "docs" / "guides"
PAGE = (DOCS / "several_machines.md").read_text()
#: tests/examples/test_commands.py parses the commands that start examples on other pages; these are parsed alike.
COMMANDS = [
    line
    for page in (PAGE, (DOCS / "choose_a_mesh.md").read_text())
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith(("python ", "horovodrun ", "mpirun ", "srun "))
]


def _num_processes(command: str) -> int:
    words = shlex.split(command)
    if words[0] == "srun":
        [nodes], [tasks] = (re.findall(rf"#SBATCH --{name}=(\d+)", PAGE) for name in ("nodes", "ntasks-per-node"))
        return int(nodes) * int(tasks)
    if words[0] in ("horovodrun", "mpirun"):
        return int(words[words.index("-np") + 1])
    flags = _telling(lambda: launcher_flags.parser().parse_args(shlex.split(command.replace("$RANK", "0"))[3:]))
    return int(flags.nproc_per_node or 1) * int(flags.nnodes or 1)


def test_there_are_commands_of_every_launcher() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"python", "horovodrun", "mpirun", "srun"}
    assert sum("strategies.doctor" in command for command in COMMANDS) == 2
    assert sum("--nnodes" in command for command in COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_taken(command: str) -> None:
    words = shlex.split(command)
    hosts = [words[i + 1] for i, word in enumerate(words) if word == "-H"]
    for listed in hosts:
        assert sum(int(host.partition(":")[2]) for host in listed.split(",")) == _num_processes(command)
    if words[-1] == "strategies.doctor":
        # With the launcher's parser, using an example as the program.
        program_and_flags(
            command.replace("python -m strategies.doctor", "python examples/gpt/main.py").replace(
                "-m strategies.doctor", "examples/gpt/main.py"
            )
        )
        assert doctor._parser().parse_args([]).timeout_seconds > 0
        return
    _, flags = program_and_flags(command)
    meshes = [flag.partition("=")[2] for flag in flags if flag.startswith("--mesh")]
    expected = "multi_worker" if words[0] in ("python", "srun") else "horovod"
    assert f"--strategy={expected}" in flags
    count = _num_processes(command)
    sizes = mesh_of(meshes[0] if meshes else None)
    devices = [f"CPU:{index}" for index in range(devices_of_a_process(sizes, count))]
    assert mesh_over_processes(count, sizes, devices).size == count * len(devices)


def test_meshes_of_the_table_stay_where_it_says() -> None:
    table = re.findall(r"^\| `--mesh=([^`]+)` \| [^|]+ \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)
    assert len(table) == 4
    for text, between in table:
        mesh = mesh_over_processes(8, mesh_of(text), [""])
        hosts_of = {
            axis: [{mesh.ranks[i] // 4 for i in group} for group in mesh.groups(axis)] for axis in mesh.axis_names
        }
        crossing = {axis for axis, groups in hosts_of.items() if any(len(hosts) > 1 for hosts in groups)}
        assert crossing == {between.partition(",")[0]}


def test_variables_and_defaults_are_those_of_the_launchers(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*THREAD_VARIABLES, f"{SHARING_VARIABLE}=1", "TF_CONFIG", "HOROVOD_RANK", "SLURM_PROCID"):
        assert f"`{name}`" in PAGE
    defaults = launcher_flags.parser().parse_args(["program.py"])
    assert (defaults.rdzv_timeout, defaults.node_timeout) == (300, 30)
    from horovod.runner.launch import parse_args

    with mock.patch("sys.argv", ["horovodrun", "--help"]), pytest.raises(SystemExit):
        parse_args()
    help_text = " ".join(capsys.readouterr().out.split())
    assert "HOROVOD_START_TIMEOUT" in help_text
    assert "The default value is 30 seconds" in help_text
    assert "--gloo-timeout-seconds GLOO_TIMEOUT_SECONDS" in help_text
