"""MNIST is read from the user's disk, never unpickled, and never guessed."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kinfolk import InputError
from kinfolk.cli import app
from kinfolk.datasets import data_folder, load_mnist, looking_in


def small_copy(**changes):
    images, labels = np.zeros((3, 28, 28), dtype=np.uint8), np.array([0, 5, 9])
    return {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2]} | changes


def test_a_folder_is_named_or_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", **small_copy())
    assert load_mnist(tmp_path / "mnist").y_train.tolist() == [0, 5, 9]
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    assert load_mnist().x_test.shape == (2, 28, 28)


def test_a_folder_named_for_a_while_comes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFOLK_DATA", "elsewhere")
    np.savez(tmp_path / "mnist.npz", **small_copy())
    with looking_in(tmp_path):
        assert load_mnist().y_test.tolist() == [0, 5]
        with looking_in(None):
            assert data_folder() == tmp_path
    assert data_folder() == Path("elsewhere")


def test_the_command_line_names_the_folder(tmp_path):
    asked = ["reproduce", "gtv-fig5", "--quick", "--out", str(tmp_path), "--data"]
    refused = CliRunner().invoke(app, [*asked, str(tmp_path)])
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"kinfolk: Expected mnist.npz in {tmp_path}, found none")
    np.savez(tmp_path / "mnist.npz", **small_copy())
    assert "Expected 420 images of 0 and 1, found 1." in CliRunner().invoke(app, [*asked, str(tmp_path)]).stderr


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


@pytest.mark.parametrize("kept", [0, 3, 40, 0.5, 0.9])
def test_a_damaged_file_is_a_sentence(tmp_path, kept):
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", **small_copy(x_train=images))
    whole = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    with pytest.raises(InputError, match=r"Expected the arrays x_train, .* in .*mnist\.npz, got: "):
        load_mnist(tmp_path)


def test_bytes_changed_inside_a_file_are_a_sentence(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", **small_copy(x_train=images))
    damaged = bytearray((tmp_path / "mnist.npz").read_bytes())
    damaged[300:400] = bytes(100)
    (tmp_path / "mnist.npz").write_bytes(damaged)
    with pytest.raises(InputError, match="Expected the arrays x_train, "):
        load_mnist(tmp_path)
