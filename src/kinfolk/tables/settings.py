"""Settings: what is to be learnt from a table, and how. Written as TOML, they repeat a run."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from kinfolk.checks import AtLeast, Between, InputError, check_parameters, comma_list, listing

TEXTS, LISTS = (
    ("node", "target", "graph", "model", "method", "time", "task", "hold"),
    ("features", "categorical", "coords", "members"),
)
GIVEN = "given: "
PLUS = "+"  # the usual members; before a name: that one besides
MANY_ROWS, FEWER_FOLDS = 20_000, 3
Task = Literal["auto", "regression", "classification", "count", "quantile"]


@dataclass(frozen=True)
class Settings:
    """What is to be learnt from a table, and how.

    Parameters
    ----------
    node : str
        Column with the node each row belongs to.
    target : str
        Column to predict.
    features : tuple of str
        Columns to predict from; all others by default.
    categorical : tuple of str
        Columns of numbers that are names of categories.
    coords : tuple of str
        Columns with latitude and longitude (or x and y); ``()`` looks for columns with such names.
    graph : {"auto", "coordinates", "similarity", "complete"}
        ``"auto"`` takes coordinates where there are any, else similarity. Edges that are given come first.
    neighbours : int
        How many neighbours a node chooses.
    model : str
        ``"linear"``, ``"ridge"``, ``"tree"``, ``"forest"``, ``"boosting"`` or ``file.py:Name``.
    method : str
        ``"auto"``, ``"gtvmin"``, ``"gtvmin-smooth"``, ``"fedrelax"``, ``"ifca"`` or ``file.py:Name``.
    lam : float or "auto"
        λ; ``"auto"`` chooses it by cross-validation.
    test : float or str
        Share of the rows that are held out, or a column that marks them.
    time : str, optional
        Column by which the last rows are held out, rather than random ones.
    hold : {"rows", "nodes", "regions"}
        What is held out if ``test`` is a share and no time is given: rows of every node, whole nodes, or all nodes of
        some regions of the map.
    task : {"auto", "regression", "classification", "count", "quantile"}
        Whether the mean of a number, a class, the mean of a count or a quantile of a number is predicted; ``"auto"``: a
        class where the target is text, true and false, or has two values, else a number.
    quantile : float
        The quantile that the task ``"quantile"`` predicts, between 0 and 1.
    folds : int or "auto"
        Number of parts for cross-validation; ``"auto"``: 5, as a fifth of the rows is held out, but 3 windows of
        time, and 3 parts of many rows.
    members : tuple of str
        Members of the blend: ``"pooled"``, ``"alone"``, ``"intercepts"``, ``"slopes"``, ``"tailored"``, ``"wide"``,
        ``"trees"``, ``"boosted"``, where later times are predicted ``"recent"``, ``"recent-intercepts"`` and
        ``"recent-slopes"``, or ``file.py:Name``; all of these by default, for models that are not linear
        ``"pooled"``, ``"alone"`` and ``"tailored"``. A list replaces these; ``+`` adds to them, before a name
        (``"+mine.py:Mine"``) or, in Python, in front of an estimator: ``["+", Mine()]``.
    rivals : bool
        Whether to compare with more methods of others than the two that are always there.
    seed : int
        Seed of all that is drawn.
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
    hold: Literal["rows", "nodes", "regions"] = "rows"
    task: Task = "auto"
    quantile: Annotated[float, Between(0, 1, open_low=True, open_high=True)] = 0.5
    folds: Annotated[int, AtLeast(2)] | Literal["auto"] = "auto"
    members: tuple[str, ...] = ()
    rivals: bool = False
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Settings by name, from a TOML file, the command line or Python; ``a,b`` is a list of two columns.

        >>> Settings.of({"node": "shop", "target": "sales", "features": "price,day"}).features
        ('price', 'day')
        >>> Settings.of({"node": "shop", "target": "sales", "lamda": 1.0})
        Traceback (most recent call last):
        kinfolk.checks.InputError: Expected settings such as 'lam', got 'lamda': known are node, target, features, ...
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in values if name not in known]
        if unknown:
            raise InputError(f"Expected settings such as 'lam', got {listing(unknown)}: known are {', '.join(known)}.")
        missing = [name for name in ("node", "target") if name not in values]
        if missing:
            raise InputError(f"Expected the settings 'node' and 'target', got no {listing(missing)}.")
        return cls(**{name: _plain(name, value) for name, value in values.items()})

    def check(self) -> None:
        """Refuse what makes no sense whatever the table is."""
        check_parameters(self)
        if self.coords and len(self.coords) != 2:
            raise InputError(f"Expected two columns of coordinates, such as lat,lon, got {listing(self.coords)}.")
        if isinstance(self.test, float | int) and not 0 < self.test < 1:
            raise InputError(f"Expected a share between 0 and 1 to hold out, got {self.test}: for instance 0.2.")
        if self.quantile != 0.5 and self.task != "quantile":
            raise InputError(
                f"Expected the task quantile for the quantile {self.quantile}, got the task {self.task!r}."
            )
        if self.hold != "rows" and (self.time is not None or isinstance(self.test, str)):
            raise InputError(
                f"Expected one rule for the test rows, got hold {self.hold!r} and a column: leave out hold, or time "
                "and the column that marks test rows."
            )

    def named_members(self, usual: Sequence[str]) -> list[str]:
        """The members by name: those of the list, and the usual ones besides, with a plus or without a list.

        >>> Settings("shop", "sales", members=("+mine.py:Mine",)).named_members(["pooled", "tailored"])
        ['pooled', 'tailored', 'mine.py:Mine']
        >>> Settings("shop", "sales", members=("mine.py:Mine",)).named_members(["pooled", "tailored"])
        ['mine.py:Mine']
        """
        named = [name.removeprefix(PLUS) for name in self.members if name != PLUS]
        adds = not self.members or any(name.startswith(PLUS) for name in self.members)
        return [*(name for name in usual if adds and name not in named), *named]

    @property
    def own_members_only(self) -> bool:
        """Whether all members are the user's own: objects, or ``file.py:Name``."""
        return bool(self.members) and all(":" in name and not name.startswith(PLUS) for name in self.members)

    def fold_count(self, rows: int, usual: int) -> int:
        """The number of parts for so many training rows."""
        if self.folds != "auto":
            return self.folds
        return usual if rows <= MANY_ROWS else FEWER_FOLDS

    @property
    def has_objects(self) -> bool:
        """Whether the model or a member was given as an object, which no file can hold."""
        return any(each.startswith(GIVEN) for each in (self.model, *self.members))

    def to_python(self) -> list[str]:
        """The settings that differ from the defaults, as arguments of ``learn``.

        >>> Settings("shop", "sales", members=("pooled", "given: Ridge")).to_python()
        ["node='shop'", "target='sales'", "members=['pooled', Ridge(...)]"]
        """
        return [f"{name}={_source(value)}" for name, value in self.to_toml().items()]

    def to_toml(self) -> dict[str, Any]:
        """The settings that differ from the defaults, for a TOML file."""
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        changed = {name: value for name, (value, default) in values.items() if value != default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def _source(value: Any) -> str:
    """A value as Python has it; what was given as an object, which no file can hold, by its type."""
    if isinstance(value, list):
        return f"[{', '.join(map(_source, value))}]"
    given = isinstance(value, str) and value.startswith(GIVEN)
    return f"{value.removeprefix(GIVEN)}(...)" if given else repr(value)


def _plain(name: str, value: Any) -> Any:
    """The value of a setting as plain Python, or a sentence."""
    value = value.item() if isinstance(value, np.generic) else value
    if name in LISTS:
        value = comma_list(value) if isinstance(value, str) else value
        value = tuple(map(str, value)) if isinstance(value, np.ndarray) else value
    texts = value if name in LISTS and isinstance(value, list | tuple) else [value]
    if name in LISTS + TEXTS and not all(isinstance(text, str) for text in texts if name != "time" or text is not None):
        raise InputError(f"Expected text for the setting {name!r}, got {value!r}: put it in quotes.")
    return tuple(value) if isinstance(value, list) else value


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or a sentence."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"Expected a file with the settings of a run, found no {str(path)!r}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"Expected TOML in {path.name!r}, got something else ({error}).") from error
