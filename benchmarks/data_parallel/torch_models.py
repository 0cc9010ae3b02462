"""The models of `mirrored.models` in torch, layer by layer; images are channels first, as usual in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Equal to that of `mirrored.models`, which cannot be imported here, because it imports TensorFlow.
NUM_CLASSES = 10
BATCHES_IN_MEMORY = 8

_BATCH_NORM = {"eps": 1.001e-5, "momentum": 0.01}


@dataclass(frozen=True)
class Subject:
    """A model with its input shape and optimizer.

    Attributes:
        image_shape: shape of one input; for an image channels, height and width.
        make_model: makes the model, whose outputs are logits.
        make_optimizer: makes the optimizer of parameters.
    """

    image_shape: tuple[int, ...]
    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]


class _Block(nn.Module):
    """Three convolutions beside a shortcut; the first has the stride, as in Keras' ResNet50."""

    def __init__(self, num_inputs: int, num_filters: int, stride: int, projected: bool) -> None:
        super().__init__()
        num_outputs = 4 * num_filters
        self.shortcut = _normalized(num_inputs, num_outputs, 1, stride) if projected else nn.Identity()
        self.residual = nn.Sequential(
            _normalized(num_inputs, num_filters, 1, stride),
            nn.ReLU(inplace=True),
            _normalized(num_filters, num_filters, 3, 1),
            nn.ReLU(inplace=True),
            _normalized(num_filters, num_outputs, 1, 1),
        )

    def forward(self, inputs: Any) -> Any:
        return torch.relu(self.shortcut(inputs) + self.residual(inputs))


def _normalized(num_inputs: int, num_outputs: int, kernel_size: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(num_inputs, num_outputs, kernel_size, stride, padding=kernel_size // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(num_outputs, **_BATCH_NORM))


def _small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, NUM_CLASSES),
    )


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [_normalized(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    num_inputs = 64
    for num_filters, num_blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(num_blocks):
            first = index == 0
            layers.append(_Block(num_inputs, num_filters, stride if first else 1, projected=first))
            num_inputs = 4 * num_filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_inputs, NUM_CLASSES))


def _adam(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def _momentum(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


MODELS: Mapping[str, Subject] = {
    "small_cnn": Subject((1, 28, 28), _small_cnn, _adam),
    "resnet50": Subject((3, 64, 64), _resnet50, _momentum),
}
