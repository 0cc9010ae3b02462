"""Plans: which layers are split, and how. Nothing is computed."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from keras_ext.tensor.planner import make_plan

L = keras.layers


def kinds(model: Any, num_shards: int = 2, **kwargs: Any) -> dict[str, Any]:
    plan = make_plan(model, num_shards, **kwargs)
    return {path: (choice.kind, choice.pieces) for path, choice in plan.items()}


def mlp() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="relu", name="up"),
            L.Dropout(0.1, name="drop"),
            L.Dense(6, name="down"),
            L.Dense(3, activation="softmax", name="odd"),
            L.Dense(5, name="odder"),
        ],
        name="mlp",
    )


def test_pairs_columns_with_rows() -> None:
    assert kinds(mlp()) == {
        "up": ("column", True),
        "drop": (None, True),
        "down": ("row", False),
        # Three or five outputs are not divisible by two, nor are three inputs.
        "odd": ("row", False),
        "odder": ("gathered", False),
    }


@pytest.mark.parametrize("mode", ["int4", "float8"])
def test_quantized_layers_stay_whole(mode: str) -> None:
    for name, other in (("up", "down"), ("down", "up")):
        model = mlp()
        model.get_layer(name).quantize(mode)
        found = kinds(model)
        assert found[name] == (None, False)
        assert found[other][0] == "column"
        assert make_plan(model, 2).whole[name].startswith("it is quantized")
        with pytest.raises(ValueError, match=rf"splits '{name}', which is quantized: .*Received: 'column' for a Dense"):
            make_plan(model, 2, {name: "column"})
        assert kinds(model, wanted={name: None})[name] == (None, False)


def test_int8_kernels_are_split_by_columns_alone() -> None:
    for name, other in (("up", "down"), ("down", "up")):
        model = mlp()
        model.get_layer(name).quantize("int8")
        found = kinds(model)
        assert found[name] == ("column", False)
        assert found[other][0] == "column"
        assert kinds(model, wanted={name: "column"})[name] == ("column", False)
        assert kinds(model, wanted={name: None})[name] == (None, False)
        with pytest.raises(ValueError, match=rf"splits '{name}', which is quantized: .*Use 'column', or leave it out"):
            make_plan(model, 2, {name: "row"})


def test_an_output_that_others_use_is_whole() -> None:
    x = keras.Input((6,))
    up = L.Dense(8, activation="relu", name="up")(x)
    down = L.Dense(6, name="down")(up)
    both = keras.Model(x, [down, up])
    assert kinds(both) == {"up": ("column", False), "down": ("column", False)}
    used_twice = keras.Model(x, L.Add(name="add")([L.Dense(8, name="again")(up), up]))
    assert kinds(used_twice)["up"] == ("column", False)


def test_a_shared_layer_is_no_pair() -> None:
    x = keras.Input((8,))
    shared = L.Dense(8, activation="relu", name="shared")
    assert kinds(keras.Model(x, shared(shared(x)))) == {"shared": ("column", False)}


class Holder(keras.Layer):
    """Holds a layer that it never calls, and so is never built."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.unused = L.Conv2D(4, 3, name="unused")
        self.used = L.Dense(4, name="used")

    def build(self, shape: Any) -> None:
        self.used.build(shape)

    def call(self, x: Any) -> Any:
        return self.used(x)


def test_a_layer_that_is_never_called_is_not_split() -> None:
    x = keras.Input((8,))
    found = kinds(keras.Model(x, Holder(name="holder")(x)))
    assert {path: kind for path, (kind, _) in found.items() if kind} == {"holder/used": "column"}


def test_an_activation_that_needs_all_units_parts_a_pair() -> None:
    x = keras.Input((8,))
    model = keras.Model(x, L.Dense(8, name="b")(L.Dense(8, activation="softmax", name="a")(x)))
    assert kinds(model) == {"a": ("column", False), "b": ("column", False)}


def test_convolutions_through_batch_normalization() -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(8, 3, name="a"),
            L.BatchNormalization(name="norm"),
            L.ReLU(name="relu"),
            L.Conv2D(4, 3, name="b"),
            L.Flatten(name="flat"),
            L.Dense(2, name="out"),
        ]
    )
    assert kinds(model) == {
        "a": ("column", True),
        "norm": (None, True),
        "relu": (None, True),
        "b": ("row", False),
        "flat": (None, False),
        "out": ("column", False),
    }


def test_embeddings_attention_and_models_inside() -> None:
    x = keras.Input((5,), dtype="int32")
    h = L.Embedding(7, 8, name="tokens")(x)
    h = L.MultiHeadAttention(4, 2, name="four")(h, h)
    h = L.MultiHeadAttention(3, 2, name="three")(h, h)
    inner_x = keras.Input((5, 8))
    inner = keras.Model(inner_x, L.Dense(8, name="b")(L.Dense(16, "gelu", name="a")(inner_x)), name="inner")
    assert kinds(keras.Model(x, inner(h))) == {
        "tokens": ("vocab", False),
        "four": ("heads", False),
        "three": (None, False),
        "inner/a": ("column", True),
        "inner/b": ("row", False),
    }


def test_a_plan_of_ones_own() -> None:
    wanted = {"up": "column", "down": "row", "od+": None}
    assert kinds(mlp(), wanted=wanted) == {
        "up": ("column", True),
        "drop": (None, True),
        "down": ("row", False),
        "odd": (None, False),
        "odder": (None, False),
    }
    assert kinds(mlp(), wanted={"down": "column"})["up"] == (None, False)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"up": "heads"}, "'heads' for 'up', a Dense, which can be"),
        ({"drop": "column"}, "a Dropout, which can be"),
        ({"nobody": "row"}, r"\['nobody'\] is found"),
    ],
)
def test_refuses_a_plan_that_does_not_fit(wanted: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kinds(mlp(), wanted=wanted)


def test_refuses_a_model_that_cannot_be_taken_apart() -> None:
    class Own(keras.Model):
        pass

    with pytest.raises(ValueError, match="of class Own"):
        kinds(Own())
    with pytest.raises(ValueError, match=r"keras\.Input"):
        kinds(keras.Sequential([L.Dense(2)], name="unbuilt"))


def test_prints_a_table() -> None:
    assert str(make_plan(mlp(), 2)).splitlines() == [
        "2 shards",
        "layer  class    split     output     parameters  on a device",
        "up     Dense    column    in pieces          56           28",
        "drop   Dropout  -         in pieces           0            0",
        "down   Dense    row       whole              54           30",
        "odd    Dense    row       whole              21           12",
        "odder  Dense    gathered  whole              20           14",
        "all                                         151           84",
        "88.7 % of the parameters are split.",
        "Whole: odder (20 parameters): bias is a vector.",
    ]


class Table(keras.layers.Layer):
    """A layer with its own weights, whose roles Keras does not know."""

    def build(self, shape: Any) -> None:
        self.wide = self.add_weight(shape=(3, 10), name="wide")
        self.three = self.add_weight(shape=(2, 3, 3), name="three")
        self.small = self.add_weight(shape=(1, 1), name="small")

    def call(self, x: Any) -> Any:
        return x + keras.ops.sum(self.wide) + keras.ops.sum(self.three) + self.small[0, 0]


class Writing(Table):
    def save_own_variables(self, store: Any) -> None:
        store["all"] = self.wide


def test_large_weights_of_any_layer_are_cut_or_it_is_said_why_not() -> None:
    x = keras.Input((5, 6))
    h = L.EinsumDense("abc,cde->abde", (None, 4, 6), bias_axes="de", name="heads")(x)
    h = L.EinsumDense("abde,dec->abc", (None, 6), bias_axes="c", name="from_heads")(h)
    h = L.MultiHeadAttention(3, 2, name="three_heads")(h, h)
    h = L.Conv1D(5, 3, name="conv")(Table(name="table")(h))
    h = L.LSTM(4, name="lstm")(Writing(name="writing")(h))
    plan = make_plan(keras.Model(x, h), 4)
    cut = {path: [(weight.name, dim) for weight, dim in choice.dims] for path, choice in plan.items() if choice.dims}
    assert cut == {
        "heads": [("kernel", 1), ("bias", 0)],
        # No output dim is a multiple of four, so the input dim is cut.
        "from_heads": [("kernel", 2), ("bias", 0)],
        "conv": [("kernel", 1)],
        "table": [("wide", 1)],
    }
    assert plan["heads"].kind == "column"
    assert plan["conv"].kind == plan["table"].kind == "gathered"
    assert plan.whole == {
        "three_heads": "its heads cannot be split evenly (num_heads=3)",
        "table": "three: no dim has 4 numbers or more",
        "writing": "Writing writes files in its own way (save_own_variables)",
        "lstm": "LSTM holds layers that are not looked into",
    }
    # A layer that is requested explicitly splits every weight that it can, however small.
    asked = make_plan(keras.Model(x, h), 2, {"table": "gathered", "conv": None})
    assert [weight.name for weight, _ in asked["table"].dims] == ["wide", "three"]
    assert not asked["conv"].dims


def test_a_layout_map_of_keras() -> None:
    mesh = keras.distribution.DeviceMesh((1, 2), ("rows", "model"), ["cpu:0", "cpu:1"])
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*/up/kernel"] = (None, "model")
    layout[".*/up/bias"] = ("model",)
    layout[".*down.*kernel"] = ("model", "rows")
    layout[".*/odd/kernel"] = (None, "model")
    layout[".*/odder/bias"] = ("model",)
    model = mlp()
    assert kinds(model, wanted=layout) == {
        "up": ("column", True),
        "drop": (None, True),
        "down": ("row", False),
        # Three are not divisible by two: sharded, and gathered for its call.
        "odd": ("gathered", False),
        "odder": ("gathered", False),
    }
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*/up/kernel"] = ("model", "model")
    with pytest.raises(ValueError, match=r"along one dim here.* for '.*up/kernel'"):
        kinds(model, wanted=layout)
    layout = keras.distribution.LayoutMap(mesh)
    layout["nobody"] = ("model",)
    with pytest.raises(ValueError, match="No weight of the model fits"):
        kinds(model, wanted=layout)
