"""The table of a site, as the agreement wants it: columns of numbers, categories, nodes and a target."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.federation.agreement import NUMBER, Agreement, Kind
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.tables.kept import SITE
from kinfolk.network.data import Data
from kinfolk.network.folds import places_of_rows
from kinfolk.tables.columns import as_numbers, as_texts, check_size, find_columns, node_names, some_rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target, known_targets
from kinfolk.typing import Floats

HERE = "the node of this site"  # a column, where a site is one node
MOST_CATEGORIES = 50


class AgreedColumns(NamedTuple):
    """What a table tells of its columns, for an agreement."""

    features: dict[str, Kind]
    classes: tuple[str, ...]  # of the target; none: it is a number


def agreed_columns(
    table: pandas.DataFrame,
    node: str | None,
    target: str,
    features: Sequence[str] = (),
    categorical: Sequence[str] = (),
) -> AgreedColumns:
    """Names, types and categories of a table like those of the sites; no row of it is kept.

    >>> table = pandas.DataFrame({"age": [40, 51, 63], "sex": ["f", "m", "f"], "ill": ["no", "yes", "no"]})
    >>> agreed_columns(table, None, "ill")
    AgreedColumns(features={'age': 'number', 'sex': ('f', 'm')}, classes=('no', 'yes'))
    """
    settings = Settings(node=node or HERE, target=target, features=tuple(features), categorical=tuple(categorical))
    if node is None:
        table = table.assign(**{HERE: "here"})
    columns, known = find_columns(table, settings), table[target][known_targets(table[target])]
    found = Target.of(known, np.ones(len(known), dtype=bool), settings)
    kinds: dict[str, Kind] = {}
    for name in map(str, table.columns):
        if name in columns.numbers:
            kinds[name] = NUMBER
        elif name in columns.categories:
            kinds[name] = tuple(sorted(as_texts(table[name].dropna()).unique()))
    many = [name for name, kind in kinds.items() if len(kind) > MOST_CATEGORIES and kind != NUMBER]
    if many:
        raise InputError(
            f"Expected at most {MOST_CATEGORIES} categories in a column, {listing(many)} has more: leave it out of the "
            "features."
        )
    return AgreedColumns(kinds, tuple(map(str, found.classes)))


def agreed_table(table: pandas.DataFrame, agreement: Agreement, site: str) -> pandas.DataFrame:
    """The agreed columns of the table of a site, and nothing else; without a column of nodes, the site is one."""
    settings = agreement.table_settings
    if agreement.node is None:
        table = table.assign(**{SITE: site})
    wanted = [settings.node, settings.target, *settings.features, *settings.coords]
    wanted += [name for name in (settings.time, settings.test) if isinstance(name, str)]
    missing = [name for name in dict.fromkeys(wanted) if name not in table.columns]
    if missing:
        raise InputError(
            f"Expected the columns of the agreement, the table of site {site!r} lacks {listing(missing)}; it has "
            f"{listing(map(str, table.columns), 12)}: rename or add them."
        )
    return table[list(dict.fromkeys(wanted))]


def site_rows(table: pandas.DataFrame, agreement: Agreement, site: str) -> SiteRows:
    """The rows of a site from its table; a share of every node's rows is held out.

    Parameters
    ----------
    table : pandas.DataFrame
        The table of the site; columns that the agreement does not name are left out.
    agreement : Agreement
        Of the federation.
    site : str
        The name of the site.

    Returns
    -------
    SiteRows
        Numbers as they are, not yet in the units of the federation.
    """
    wanted = [*agreement.features, agreement.target, *([] if agreement.node is None else [agreement.node])]
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise InputError(
            f"Expected the columns of the agreement, the table of site {site!r} lacks {listing(missing)}; it has "
            f"{listing(map(str, table.columns), 12)}: rename or add them."
        )
    names, owner = np.unique(nodes_of(table, agreement, site), return_inverse=True)
    X, y = encoded(table, agreement), _target(table[agreement.target], agreement)
    held_out = places_of_rows(owner, agreement.seed + zlib.crc32(site.encode())) < agreement.test
    if held_out.all():
        held_out[:] = False
    data, test = (_of_nodes(X[rows], y[rows], owner[rows], len(names)) for rows in (~held_out, held_out))
    return SiteRows(names.tolist(), agreement.columns, data, test if held_out.any() else None)


def nodes_of(table: pandas.DataFrame, agreement: Agreement, site: str) -> Any:
    """The node of every row; without a column for it, all rows are of one node, the site."""
    if agreement.node is None:
        return np.full(len(table), site, dtype=object)
    lost = int(table[agreement.node].isna().sum())
    if lost:
        raise InputError(
            f"Expected a node in every row, column {agreement.node!r} has none in {lost:,} rows: fill or drop them."
        )
    return node_names(table, agreement.node)


def encoded(table: pandas.DataFrame, agreement: Agreement) -> Floats:
    """The features as numbers; a category that is not agreed on is none of those that are."""
    blocks = []
    for name, kind in agreement.features.items():
        if kind == NUMBER:
            blocks.append(_numbers(table[name])[:, None])
        else:
            texts = as_texts(table[name]).to_numpy(dtype=object)
            blocks.append(np.column_stack([texts == each for each in kind]).astype(np.float64))
    return np.concatenate(blocks, axis=1)


def _numbers(column: pandas.Series) -> Floats:
    values, wrong = as_numbers(column)
    wrong |= np.isinf(values)
    if wrong.any():
        raise InputError(f"Expected numbers in column {column.name!r}, got {some_rows(column, wrong)}: correct these.")
    check_size(np.abs(values), str(column.name))
    return values


def _target(column: pandas.Series, agreement: Agreement) -> Floats:
    if not agreement.classes:
        values = _numbers(column)
    else:
        number = {name: float(k) for k, name in enumerate(agreement.classes)}
        values = np.array([number.get(text, np.nan) for text in as_texts(column)])
    wrong = np.isnan(values)
    if wrong.any():
        expected = f"one of {listing(agreement.classes, 12)}" if agreement.classes else "a number"
        raise InputError(
            f"Expected {expected} as {column.name!r} in every row, got {some_rows(column, wrong)}: correct or drop "
            "them."
        )
    return values


def _of_nodes(X: Floats, y: Floats, owner: Any, node_count: int) -> Data:
    order = np.argsort(owner, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=node_count))]).astype(np.int64)
    return Data(np.ascontiguousarray(X[order]), y[order], starts)
