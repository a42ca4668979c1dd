"""MNIST is read from the user's disk, never unpickled, and never guessed."""

import numpy as np
import pytest

from kinfolk import InputError
from kinfolk.datasets import load_mnist


def small_copy(**changes):
    images, labels = np.zeros((3, 28, 28), dtype=np.uint8), np.array([0, 5, 9])
    return {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2]} | changes


def test_a_folder_is_named_or_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", **small_copy())
    assert load_mnist(tmp_path / "mnist").y_train.tolist() == [0, 5, 9]
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    assert load_mnist().x_test.shape == (2, 28, 28)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(InputError, match=r"Expected mnist\.npz in .*, found none"):
        load_mnist(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"y_train": np.array([0, 5, 10])},
        {"x_test": np.zeros((2, 14, 14))},
        {"y_test": np.array([{}, {}], dtype=object)},  # would have to be unpickled
    ],
)
def test_what_is_no_mnist_is_refused(tmp_path, changes):
    np.savez(tmp_path / "mnist.npz", **small_copy(**changes))
    with pytest.raises(InputError, match="Expected"):
        load_mnist(tmp_path)


def test_openml_out_of_reach_is_a_sentence(monkeypatch):
    def fail(*_, **__):
        raise OSError("no network")

    monkeypatch.delenv("KINFOLK_DATA", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fail)
    with pytest.raises(InputError, match=r"put mnist\.npz into a folder and name it"):
        load_mnist()
