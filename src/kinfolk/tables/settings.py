"""Settings: all that an analyst says about a table. They can be written as TOML, and repeat a run."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from kinfolk.checks import AtLeast, Between, InputError, check_parameters, listing

TEXTS, LISTS = ("node", "target", "graph", "model", "method", "time", "task"), ("features", "categorical", "coords")
Task = Literal["auto", "regression", "classification"]


@dataclass(frozen=True)
class Settings:
    """What is to be learnt from a table, and how.

    Parameters
    ----------
    node, target : columns that say whose a row is, and what is to be predicted.
    features : columns to predict from; all others by default.
    categorical : columns of numbers that are names of categories.
    coords : columns with latitude and longitude (or x and y); ``()`` looks for columns named so.
    graph : ``"auto"`` (coordinates where there are any, else similarity), ``"coordinates"``, ``"similarity"`` or
        ``"complete"``. Edges that are given come before any of these.
    neighbours : how many neighbours a node chooses.
    model : ``"linear"``, ``"ridge"``, ``"tree"``, ``"forest"``, ``"boosting"`` or ``file.py:Name``.
    method : ``"auto"``, ``"gtvmin"``, ``"gtvmin-smooth"``, ``"fedrelax"`` or ``file.py:Name``.
    lam : λ, or ``"auto"`` for cross-validation.
    test : share of the rows that are held out, or a column that marks them.
    time : column by which the last rows are held out, rather than random ones.
    task : whether the target is a number or a class; recognised by default.
    folds : number of parts for cross-validation.
    seed : seed of all that is drawn.
    """

    node: str
    target: str
    features: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    coords: tuple[str, ...] = ()
    graph: Literal["auto", "coordinates", "similarity", "complete"] = "auto"
    neighbours: Annotated[int, AtLeast(1)] = 5
    model: str = "ridge"
    method: str = "auto"
    lam: Annotated[float, AtLeast(0)] | Literal["auto"] = "auto"
    test: Annotated[float, Between(0, 1, open_low=True, open_high=True)] | str = 0.2
    time: str | None = None
    task: Task = "auto"
    folds: Annotated[int, AtLeast(2)] = 3
    seed: Annotated[int, AtLeast(0)] = 0

    def check(self) -> None:
        """Refuse what makes no sense whatever the table is."""
        check_parameters(self)
        if self.coords and len(self.coords) != 2:
            raise InputError(f"Expected two columns of coordinates, such as lat,lon, got {listing(self.coords)}.")
        if isinstance(self.test, float | int) and not 0 < self.test < 1:
            raise InputError(f"Expected a share between 0 and 1 to hold out, got {self.test}: for instance 0.2.")

    def to_toml(self) -> dict[str, Any]:
        """The settings that differ from the defaults, for a TOML file."""
        plain = dataclasses.asdict(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plain.items()
            if value != defaults[name]
        }

    @classmethod
    def from_toml(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from the values of a TOML file.

        >>> Settings.from_toml({"node": "shop", "target": "sales", "lamda": 1.0})
        Traceback (most recent call last):
        kinfolk.checks.InputError: Expected settings such as 'lam', got 'lamda': known are node, target, features, ...
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in values if name not in names]
        if unknown:
            raise InputError(f"Expected settings such as 'lam', got {listing(unknown)}: known are {', '.join(names)}.")
        missing = [name for name in ("node", "target") if name not in values]
        if missing:
            raise InputError(f"Expected the settings 'node' and 'target', got no {listing(missing)}.")
        for name, value in values.items():
            texts = value if name in LISTS and isinstance(value, list | tuple) else [value]
            if name in LISTS + TEXTS and not all(isinstance(text, str) for text in texts):
                raise InputError(f"Expected text for the setting {name!r}, got {value!r}: put it in quotes.")
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or a sentence."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"Expected a file with the settings of a run, found no {str(path)!r}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"Expected TOML in {path.name!r}, got something else ({error}).") from error
