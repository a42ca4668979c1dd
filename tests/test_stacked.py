"""Layers that hold the parameters of many nodes, against modules that torch maps over nodes."""

import numpy as np
import pytest

from kinfolk import kernels

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from kinfolk.modules.flat import FlatModule  # noqa: E402
from kinfolk.modules.row_losses import row_loss  # noqa: E402
from kinfolk.modules.scored import ScoredModule  # noqa: E402
from kinfolk.modules.stacked import MappedModule, StackedModule  # noqa: E402

NODES, ROWS, SIDE, CLASSES = 3, 5, 8, 3


class Tied(nn.Module):
    """Uses the parameters of a layer beside the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIDE * SIDE, SIDE * SIDE)
        self.last = nn.Linear(SIDE * SIDE, CLASSES)

    def forward(self, x):
        return self.last(self.layer(torch.tanh(x @ self.layer.weight)))


def images(frozen=False):
    made = nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, (3, 2), (2, 1), padding=(0, 1), bias=False), nn.Tanh(), nn.Flatten(),
        nn.Linear(30, 5, bias=False), nn.ReLU(inplace=True), nn.Linear(5, CLASSES),
    )  # fmt: skip
    made[1].weight.requires_grad_(not frozen)
    return made


MODULES = {
    "convolutions": (images, StackedModule),
    "a frozen convolution": (lambda: images(frozen=True), StackedModule),
    "wide windows": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (4, 4, 4)), nn.Conv2d(4, 8, 3), nn.Conv2d(8, 2, 2), nn.Flatten(), nn.Linear(2, CLASSES)
        ),
        StackedModule,
    ),
    "one layer": (lambda: nn.Linear(SIDE * SIDE, CLASSES), StackedModule),
    "another layer": (
        lambda: nn.Sequential(nn.Linear(SIDE * SIDE, 4), nn.PReLU(), nn.Linear(4, CLASSES)),
        MappedModule,
    ),
    "a convolution in groups": (
        lambda: nn.Sequential(nn.Unflatten(1, (4, 4, 4)), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)),
        MappedModule,
    ),
    "parameters used elsewhere": (Tied, MappedModule),
}


def scored_module(make):
    rng = np.random.default_rng(0)
    flat = FlatModule.of(make())
    return ScoredModule(
        flat, row_loss("cross-entropy", ""), rng.random((6, SIDE * SIDE)), np.arange(6.0) % CLASSES
    ), flat.start + 0.1 * rng.normal(size=(NODES, flat.size))


def batches(count):
    torch.manual_seed(0)
    for _ in range(count):
        weight = torch.rand(NODES, ROWS, dtype=torch.float64)
        X = torch.rand(NODES, ROWS, SIDE * SIDE, dtype=torch.float64)
        yield X, torch.randint(0, CLASSES, (NODES, ROWS)).double(), weight / weight.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("name", MODULES)
def test_many_nodes_in_one_call_descend_as_mapped_ones(name):
    make, kind = MODULES[name]
    scored, w = scored_module(make)
    assert type(scored._of_nodes) is kind
    ridge, lengths = np.array([0.0, 0.1, 0.3]), [0.1, 0.2, 0.1, 0.05]
    mapped = scored._walked_with(MappedModule(scored.flat), w, ridge, batches(4), lengths)
    found = scored.walked_together(w, ridge, batches(4), lengths)
    assert np.abs(mapped - w).max() > 0.01
    np.testing.assert_allclose(found, mapped, rtol=0, atol=1e-13)


def test_no_parameter_is_held_after_a_walk():
    scored, w = scored_module(lambda: images(frozen=True))
    scored.walked_together(w, np.zeros(NODES), batches(1), [0.1])
    assert not any(layer.held for layer in scored._of_nodes.layers.values())


def test_the_answer_does_not_depend_on_the_threads_of_torch():
    scored, w = scored_module(images)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(scored.walked_together(w, np.zeros(NODES), batches(3), [0.1] * 3))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(*found)


def test_windows_are_added_where_they_were_taken():
    images = np.random.default_rng(0).normal(size=(2, 6, 7))
    stacked = torch.tensor(images).unfold(1, 4, 2).unfold(2, 3, 2).numpy()  # (images, rows, columns, 4, 3)
    counts = np.zeros((2, 6, 7))
    for row in range(2):
        for column in range(3):
            counts[:, 2 * row : 2 * row + 4, 2 * column : 2 * column + 3] += 1.0
    np.testing.assert_allclose(kernels.add_windows(np.ascontiguousarray(stacked), 2, 2, 6, 7), counts * images)
