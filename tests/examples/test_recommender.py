"""The recommender: ratings in MovieLens' layout, one device's numbers on several, files, its command line."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common import devices
from common.options import OptionError
from recommender import ratings, synthetic, train
from recommender.model import build_model
from recommender.options import Options, check

import keras_ext
from tests.examples import EXAMPLES
from tests.processes import Programs, horovodrun, launcher, python

MAIN = EXAMPLES / "recommender" / "main.py"
QUIET = Options(batch_size=32, epochs=6, embedding_dim=4, devices=1, verbose=0)
SPEEDS = ("ratings_per_second", "waiting_input", "waiting_communication")

Run = Callable[..., train.Result]


@pytest.fixture(scope="module")
def few() -> ratings.Ratings:
    """Returns ratings in a number that no batch size divides."""
    return synthetic.make(12, 30, 171)


@pytest.fixture
def run(few: ratings.Ratings, tmp_path: Path) -> Run:
    """Returns a function that trains with changed options, in a new folder unless `run_dir` names one."""
    folders = iter(range(100))

    def run(**changes: Any) -> train.Result:
        return train.run(replace(QUIET, **{"run_dir": str(tmp_path / f"run {next(folders)}"), **changes}), few)

    return run


def curves(result: train.Result) -> dict[str, list[float]]:
    """Returns the history, without throughput."""
    return {name: values for name, values in result.outcome.history.items() if name not in SPEEDS}


def assert_equal(found: train.Result, expected: train.Result) -> None:
    assert list(curves(found)) == list(curves(expected)) == ["auc", "loss", "val_auc", "val_loss"]
    for name, values in curves(expected).items():
        np.testing.assert_allclose(curves(found)[name], values, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.usefixtures("without_rewriting")
def test_several_devices_give_the_numbers_of_one(run: Run, tmp_path: Path) -> None:
    one = run(shard="none", save=str(tmp_path / "one.keras"))
    assert curves(one)["auc"][-1] > 0.7
    folder = tmp_path / "two"
    two = run(devices=2, save=str(tmp_path / "two.keras"), run_dir=str(folder))
    assert_equal(two, one)
    plain, sharded = (keras.models.load_model(tmp_path / f"{name}.keras") for name in ("one", "two"))
    assert {type(layer) for layer in sharded.layers if "table" in layer.name} == {keras.layers.Embedding}
    for weight, same in zip(plain.get_weights(), sharded.get_weights(), strict=True):
        np.testing.assert_allclose(same, weight, rtol=0, atol=1e-5)
    # It resumes from its last checkpoint but one, on groups of two replicas that share the tables.
    last = sorted({path.stem.partition(".")[0] for path in (folder / "checkpoints").glob("step-*")})
    assert len(last) > 1
    for path in (folder / "checkpoints").glob(f"{last[-1]}*"):
        path.unlink()
    assert_equal(run(mesh="data=2,expert=2", devices=None, run_dir=str(folder)), one)


def test_tables_lie_in_shards(few: ratings.Ratings) -> None:
    with devices.make_strategy("mirrored", 2, shard="optimizer").scope():
        model = train.compiled(build_model(few.num_users, few.num_movies, 4), QUIET)
        model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    tables = 4 * 4 * (few.num_users + few.num_movies)
    others = 4 * sum(int(np.prod(v.shape)) for v in model.weights if "table" not in v.path)
    assert sum(report.weights.values()) == tables + 2 * others
    assert max(report.weights.values()) <= tables / 2 + 2 * 4 * 4 + others


def test_batches_have_every_rating_once_an_epoch_in_a_seeded_order(few: ratings.Ratings) -> None:
    def pairs(dataset: Any) -> list[list[tuple[int, int, int]]]:
        return [
            list(zip(x["user"].tolist(), x["movie"].tolist(), y[:, 0].tolist(), strict=True))
            for x, y in dataset.as_numpy_iterator()
        ]

    plain = pairs(train.evaluation_batches(few, 32))
    assert list(map(len, plain)) == [32] * 5 + [11]
    assert list(chain(*plain)) == list(
        zip(few.users.tolist(), few.movies.tolist(), (few.ratings >= 4).tolist(), strict=True)
    )
    epochs = pairs(train.training_batches(few, 32, seed=1, num_steps=12))
    assert epochs[:6] != epochs[6:]
    assert sorted(chain(*epochs[:6])) == sorted(chain(*epochs[6:])) == sorted(chain(*plain))
    assert pairs(train.training_batches(few, 32, seed=1, first_step=4, num_steps=4)) == epochs[4:8]
    assert pairs(train.training_batches(few, 32, seed=2, num_steps=6)) != epochs[:6]


def test_reads_what_it_writes(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "ratings", 3000)
    assert re.fullmatch(rb"(\d+::\d+::[1-5]::\d{9,10}\n){3000}", path.read_bytes())
    made, read = synthetic.make(synthetic.NUM_USERS, synthetic.NUM_MOVIES, 3000), ratings.load(path)
    for name in ("users", "movies", "ratings", "timestamps"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
        assert getattr(read, name).dtype == getattr(made, name).dtype
    assert len(set(zip(read.users, read.movies, strict=True))) == 3000
    before = path.stat().st_mtime_ns
    assert synthetic.write(tmp_path / "ratings", 3000).stat().st_mtime_ns == before


def test_parses_the_lines_of_movielens() -> None:
    # The first lines of MovieLens 1M, as its README describes them.
    found = ratings.parse(b"1::1193::5::978300760\r\n1::661::3::978302109\r\n6040::3952::4::956704746\r\n", "x")
    assert found.users.tolist() == [1, 1, 6040]
    assert found.movies.tolist() == [1193, 661, 3952]
    assert found.clicks.tolist() == [1, 0, 1]
    assert found.timestamps.tolist() == [978300760, 978302109, 956704746]
    assert (found.num_users, found.num_movies) == (6041, 3953)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no ratings"),
        (b"\n\n", "holds no ratings"),
        (b"1::2::3::4\n1::2::3\n", "line 2 is not UserID::MovieID::Rating::Timestamp.* Received: '1::2::3'"),
        (b"1::2::6::4\n", "line 1 is not .* from 1 to 5"),
        (b"1::2::3::4\n\n1::2::3::4", "line 2 is not .* Received: ''"),
        (b"userId,movieId,rating,timestamp\n", "line 1 is not"),
        (b"1::2::3::4::5\n", "line 1 is not"),
        (b"1::99999999999::3::4\n", "line 1 is not"),
    ],
)
def test_refuses_other_files(content: bytes, reason: str) -> None:
    with pytest.raises(ratings.DataError, match=f"^x: {reason}"):
        ratings.parse(content, "x")


def test_the_last_tenth_of_a_user_is_held_out() -> None:
    users = np.array([1] * 21 + [2] * 9 + [3] * 10, np.int32)
    times = np.random.default_rng(0).permutation(40)
    every = ratings.Ratings(users, np.arange(40, dtype=np.int32), np.full(40, 3, np.int8), times)
    training, held_out = ratings.split(every)
    assert sorted(held_out.users) == [1, 1, 3]
    assert sorted([*training.movies, *held_out.movies]) == list(range(40))
    for user in (1, 3):
        assert held_out.timestamps[held_out.users == user].min() > training.timestamps[training.users == user].max()
    with pytest.raises(ratings.DataError, match="No user has 10 ratings"):
        ratings.split(every.at(every.users == 2))


def test_refuses_stages_and_split_layers() -> None:
    check(replace(QUIET, mesh="data=2,expert=2"))
    with pytest.raises(OptionError, match=r"--mesh=data=2,pipe=2: .* data and expert"):
        check(replace(QUIET, mesh="data=2,pipe=2"))


@pytest.mark.parity_all
@pytest.mark.parametrize("strategy", ["multi_worker", "horovod"])
def test_two_processes_train_on_a_folder(strategy: str, few: ratings.Ratings, tmp_path: Path) -> None:
    columns = (few.users, few.movies, few.ratings, few.timestamps)
    lines = "".join("::".join(map(str, line)) + "\n" for line in zip(*columns, strict=True))
    (tmp_path / "ratings.dat").write_text(lines)
    program = [
        str(MAIN),
        f"--strategy={strategy}",
        f"--data_dir={tmp_path}",
        "--batch_size=32",
        "--epochs=6",
        "--embedding_dim=4",
        "--verbose=2",
        f"--run_dir={tmp_path / 'run'}",
        f"--save={tmp_path / 'two.keras'}",
    ]
    command = horovodrun(2, program)
    if strategy == "multi_worker":
        command = launcher(2, program)
    with Programs(tmp_path, [command]) as programs:
        codes = programs.wait(250)
        output = programs.output(20000)
    assert codes == [0], output
    assert output.count("result val_auc=") == 1
    assert output.count("Epoch 6/6") == 1
    assert "devices=2" in output
    alone = train.run(replace(QUIET, data_dir=str(tmp_path), run_dir=str(tmp_path / "alone"), shard="none"), few)
    found = re.search(r"val_auc=(\S+) val_loss=(\S+)", output)
    assert found is not None
    assert (found[1], found[2]) == (f"{alone.val_auc:.4f}", f"{alone.val_loss:.4f}")


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--data_dir=nowhere", "error: nowhere/ratings.dat: cannot be read (No such file or directory)"),
        ("--shard=tables", "flag --shard=tables"),
    ],
)
def test_refuses_in_one_line(flag: str, reason: str, tmp_path: Path) -> None:
    done = subprocess.run(
        python(str(MAIN), flag, f"--run_dir={tmp_path / 'run'}"),
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode != 0
    assert sum(reason in line for line in (done.stderr + done.stdout).splitlines()) == 1
    assert "Traceback" not in done.stderr
