"""The cases of ``attack.py``: damages, tables, rows, options and environments, each with what must come of it."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import lzma
import os
import resource
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
from pyarrow import parquet


def shops(rows: int = 12, count: int = 4) -> pandas.DataFrame:
    """Sales of shops of two kinds, which grow or fall with the price."""
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(count), rows)
    price = rng.normal(size=len(shop))
    sales = np.where(shop < count // 2, 2.0, -2.0) * price + 10 + 0.1 * rng.normal(size=len(shop))
    return pandas.DataFrame({"shop": [f"shop {k}" for k in shop], "price": price, "sales": sales})


def always(found: Any) -> bool:
    """Whatever came out is right."""
    return True


def good_fit(found: Any) -> bool:
    """The run knows the four shops, and predicts them well: the noise has deviation 0.1."""
    return len(found.nodes) == 4 and found.leaderboard["error"]["final"] < 0.5


def four_levels(found: Any) -> bool:
    """The run knows the four shops, and predicts one finite level for each."""
    levels = found.predict(pandas.DataFrame({"shop": [f"shop {k}" for k in range(4)], "price": 0.0}))
    return len(found.nodes) == 4 and bool(np.isfinite(levels).all())


# ---------------------------------------------------------------------- damages of files


def flipped(content: bytes, place: int) -> bytes:
    """The bytes with one bit changed."""
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


DAMAGES: dict[str, Callable[[Path, bytes], Any]] = {
    "missing": lambda file, content: file.unlink(),
    "empty": lambda file, content: file.write_bytes(b""),
    "half": lambda file, content: file.write_bytes(content[: len(content) // 2]),
    "last byte missing": lambda file, content: file.write_bytes(content[:-1]),
    "one byte more": lambda file, content: file.write_bytes(content + b" "),
    "first bit": lambda file, content: file.write_bytes(flipped(content, 0)),
    "middle bit": lambda file, content: file.write_bytes(flipped(content, len(content) // 2)),
    "last bit": lambda file, content: file.write_bytes(flipped(content, len(content) - 1)),
    "zeros": lambda file, content: file.write_bytes(bytes(len(content))),
    "noise": lambda file, content: file.write_bytes(np.random.default_rng(0).bytes(len(content))),
    "another file": lambda file, content: file.write_bytes(b"{}"),
    "twice": lambda file, content: file.write_bytes(content * 2),
    "other line ends": lambda file, content: file.write_bytes(content.replace(b"\n", b"\r\n") + b"\r\n"),
    "a folder": lambda file, content: (file.unlink(), file.mkdir()),
    "a pipe": lambda file, content: (file.unlink(), os.mkfifo(file)),
    "a link to itself": lambda file, content: (file.unlink(), file.symlink_to(file)),
    "an endless device": lambda file, content: (file.unlink(), file.symlink_to("/dev/zero")),
}

# ---------------------------------------------------------------------- tables to fit


@dataclass(frozen=True)
class TableCase:
    """A table, what must come of it, and when an answer is right."""

    name: str
    content: Callable[[], bytes]
    must: str = "refuse"
    right: Callable[[Any], bool] = always
    file: str = "t.csv"
    options: tuple[str, ...] = ()


def frame(name: str, make: Callable[[pandas.DataFrame], pandas.DataFrame], must: str, **more: Any) -> TableCase:
    """A case that is a data frame; it is stored as Parquet, which keeps all kinds of values."""

    def content() -> bytes:
        out = io.BytesIO()
        make(shops()).to_parquet(out)
        return out.getvalue()

    return TableCase(name, content, must, file="t.parquet", **more)


def text(name: str, make: Callable[[str], str], must: str, **more: Any) -> TableCase:
    """A case that is an altered CSV file."""
    return TableCase(name, lambda: make(shops().to_csv(index=False)).encode(), must, **more)


def raw(name: str, content: bytes, file: str = "t.csv") -> TableCase:
    """A case that is no table."""
    return TableCase(name, lambda: content, file=file)


def with_cell(column: str, row: int, value: Any) -> Callable[[pandas.DataFrame], pandas.DataFrame]:
    """Change one cell."""

    def change(table: pandas.DataFrame) -> pandas.DataFrame:
        values = table[column].astype(object)
        values.iloc[row] = value
        return table.assign(**{column: values.astype(str) if isinstance(value, str) else values})

    return change


def csv_of(table: pandas.DataFrame, **options: Any) -> bytes:
    """A frame as the bytes of a CSV file."""
    return table.to_csv(index=False, **options).encode()


def renamed(names: dict[str, str]) -> Callable[[pandas.DataFrame], pandas.DataFrame]:
    """Other names of nodes."""
    return lambda table: table.assign(shop=table["shop"].replace(names))


def codes(first: str, second: str) -> bytes:
    """Nodes that are codes, two of which are the same number; the second comes late."""
    table = shops().assign(shop=np.repeat([first, "36059", "48001", second], 12))
    return csv_of(table)


def odd_one(values: np.ndarray, odd: float) -> Callable[[pandas.DataFrame], pandas.DataFrame]:
    """One other value among equal ones as the target."""
    return lambda table: table.assign(sales=np.where(np.arange(len(table)) == 5, odd, values))


def bomb(kind: str) -> bytes:
    """Few bytes that unpack to very many."""
    if kind == "parquet":
        column = pyarrow.array(np.zeros(50_000_000))
        out = io.BytesIO()
        parquet.write_table(
            pyarrow.table({name: column for name in ("shop", "price", "sales")}), out, compression="zstd"
        )
        return out.getvalue()
    piece = b"0" * 12_000_000 if kind.startswith("line") else b"shop,price,sales\n" * 700_000
    return 100 * (gzip.compress(piece, 1) if kind.endswith("gz") else lzma.compress(piece, preset=0))


def _semicolons(sales: str) -> bytes:
    """A European file with one column as it is given for every row."""
    lines = [f"{shop};{price:.2f}".replace(".", ",") for shop, price in shops()[["shop", "price"]].to_numpy()]
    return (
        "shop;price;sales\n" + "".join(f"{line};{sales.format(k % 7 + 1)}\n" for k, line in enumerate(lines))
    ).encode()


def european(found: Any) -> bool:
    """Decimal commas were read as such."""
    return good_fit(found)


HUGE, TINY = 1e200, 1e-200
TABLES: list[TableCase] = [
    raw("empty file", b""),
    raw("only a header", b"shop,price,sales\n"),
    raw("one row", b"shop,price,sales\na,1,2\n"),
    raw("binary", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00"),
    raw("zeros", bytes(1000)),
    raw("not utf-8", b"shop,price,sales\n" + b"\xff\xfe,1,2\n" * 9),
    raw("utf-16", shops().to_csv(index=False).encode("utf-16")),
    raw("an open quote", b'shop,price,sales\n"a,1,2\nb,3,4\n'),
    raw("no parquet", b"PAR1 nothing PAR1", "t.parquet"),
    raw("cut parquet", parquet_bytes[:300] if (parquet_bytes := shops().to_parquet()) else b"", "t.parquet"),
    raw("no json", b"{not json", "t.jsonl"),
    raw("json of numbers", b"1\n2\n3\n", "t.jsonl"),
    raw("deep json", b"[" * 100_000, "t.jsonl"),
    raw("nested json", b'{"shop": {"a": 1}, "price": [1], "sales": 1}\n' * 9, "t.jsonl"),
    raw("no gzip", b"no gzip", "t.csv.gz"),
    raw("cut gzip", gzip.compress(shops().to_csv(index=False).encode())[:200], "t.csv.gz"),
    raw("another suffix", b"words", "t.docx"),
    raw("no suffix", b"shop,price\n", "t"),
    raw("a spreadsheet", b"PK\x03\x04" + bytes(100), "t.csv"),
    TableCase("a gzip of one line", lambda: bomb("line gz"), file="t.csv.gz"),
    TableCase("a gzip of many lines", lambda: bomb("gz"), file="t.csv.gz"),
    TableCase("an xz of many lines", lambda: bomb("xz"), file="t.csv.xz"),
    TableCase("a Parquet bomb", lambda: bomb("parquet"), file="t.parquet"),
    text("a line of two million characters", lambda csv: csv + "x" * 2_000_000, "either"),
    text("a header of two million characters", lambda csv: "x" * 2_000_000 + csv, "refuse"),
    text("a column twice", lambda csv: csv.replace("price,sales", "sales,sales"), "refuse"),
    text("a column three times", lambda csv: csv.replace("shop,price", "sales,sales"), "refuse"),
    text("a quoted column twice", lambda csv: csv.replace("price,sales", '"sales",sales'), "refuse"),
    text("rows longer than the header", lambda csv: csv.replace("\nshop", "\nx,shop"), "refuse"),
    text("one row longer", lambda csv: csv + "shop 1,1,2,3\n", "refuse"),
    text("a delimiter at the end of rows", lambda csv: csv.replace("\nshop", ",\nshop"), "either", right=good_fit),
    text("one row shorter", lambda csv: csv + "shop 1,1\n", "run", right=good_fit),
    text("blank lines", lambda csv: csv.replace("\n", "\n\n"), "run", right=good_fit),
    text("line ends of Windows", lambda csv: csv.replace("\n", "\r\n"), "run", right=good_fit),
    text("line ends of old", lambda csv: csv.replace("\n", "\r"), "either", right=good_fit),
    text("a mark of byte order", lambda csv: "\ufeff" + csv, "run", right=good_fit),
    text("spaces after commas", lambda csv: csv.replace(",", ", "), "either", right=good_fit),
    text("tabs", lambda csv: csv.replace(",", "\t"), "run", right=good_fit),
    text("bars", lambda csv: csv.replace(",", "|"), "run", right=good_fit),
    text(
        "all quoted",
        lambda csv: csv.replace(",", '","').replace("\n", '"\n"')[:-1].replace('shop"', '"shop"', 1),
        "either",
        right=good_fit,
    ),
    TableCase("leading zeros at the end", lambda: codes("7", "007"), "run", right=lambda run: len(run.nodes) == 4),
    TableCase(
        "leading zeros after a space", lambda: codes("7", " 007"), "either", right=lambda run: len(run.nodes) == 4
    ),
    TableCase(
        "leading zeros in quotes",
        lambda: codes("7", '"007"').replace(b'"""', b'"'),
        "run",
        right=lambda run: len(run.nodes) == 4,
    ),
    TableCase("1E5 beside 100000", lambda: codes("100000", "1E5"), "run", right=lambda run: len(run.nodes) == 4),
    TableCase("1e5 beside 100000", lambda: codes("100000", "1e5"), "run", right=lambda run: len(run.nodes) == 4),
    TableCase(
        "leading zeros after 20,000 rows",
        lambda: csv_of(
            pandas.concat([shops(5000).assign(shop=lambda t: t["shop"].str[-1]), shops().head(12).assign(shop="007")])
        ),
        "run",
        right=lambda run: len(run.nodes) == 5,
    ),
    TableCase("decimal commas", lambda: csv_of(shops(), sep=";", decimal=","), "run", right=good_fit),
    TableCase("decimal commas and points", lambda: _semicolons("{}.234"), "refuse"),
    TableCase("points between thousands", lambda: _semicolons("{}.234,56"), "refuse"),
    TableCase("commas that may be either", lambda: _semicolons("{},234").replace(b",", b"."), "either"),
    TableCase(
        "only points that may be either",
        lambda: (
            b"shop;price;sales\n" + b"".join(b"s%d;%d.234;%d.%d00\n" % (k % 4, k + 1, k + 2, k % 9) for k in range(48))
        ),
        "refuse",
    ),
    TableCase(
        "only commas that may be either",
        lambda: (
            b"shop;price;sales\n" + b"".join(b"s%d;%d,234;%d,%d00\n" % (k % 4, k + 1, k + 2, k % 9) for k in range(48))
        ),
        "refuse",
    ),
    TableCase("decimal points in a file of semicolons", lambda: csv_of(shops(), sep=";"), "run", right=good_fit),
    TableCase("quoted decimal commas", lambda: csv_of(shops(), decimal=","), "refuse"),
    frame("an infinite feature", with_cell("price", 3, np.inf), "refuse"),
    frame("an infinite target", with_cell("sales", 3, -np.inf), "refuse"),
    frame("infinity as text", with_cell("price", 3, "inf"), "refuse"),
    frame("minus infinity as text", with_cell("sales", 3, "-Infinity"), "refuse"),
    frame("a text among numbers", with_cell("price", 3, "dear"), "refuse"),
    frame("a text in the target", with_cell("sales", 3, "dear"), "refuse"),
    frame("a missing node", with_cell("shop", 3, None), "refuse"),
    frame("numbers as text", lambda t: t.assign(price=t["price"].astype(str)), "run", right=good_fit),
    frame("lists in cells", lambda t: t.assign(price=[[1.0]] * len(t)), "refuse"),
    frame("dictionaries in cells", lambda t: t.assign(more=[{"a": 1}] * len(t)), "either"),
    frame(
        "bytes in cells",
        lambda t: t.assign(more=[b"\xff%d" % (k % 3) for k in range(len(t))]),
        "either",
        right=good_fit,
    ),
    frame(
        "times of day",
        lambda t: t.assign(more=pandas.to_timedelta(np.arange(len(t)), unit="h")),
        "either",
        right=good_fit,
    ),
    frame(
        "decimals",
        lambda t: t.assign(price=[decimal.Decimal(str(v)) for v in t["price"]]),
        "either",
        right=good_fit,
    ),
    frame(
        "dates of the year 1",
        lambda t: t.assign(more=[datetime.date(1, 1, 1 + k % 28) for k in range(len(t))]),
        "either",
        right=good_fit,
    ),
    frame(
        "dates of the year 9999",
        lambda t: t.assign(more=[f"9999-12-{1 + k % 28:02d}" for k in range(len(t))]),
        "either",
        right=good_fit,
    ),
    frame("true and false", lambda t: t.assign(more=np.arange(len(t)) % 2 == 0), "run", right=good_fit),
    frame(
        "true, false and missing",
        lambda t: t.assign(more=pandas.array(([True, False, None] * 16), dtype="boolean")),
        "run",
        right=good_fit,
    ),
    frame(
        "whole numbers and missing",
        lambda t: t.assign(more=pandas.array(([1, 2, None] * 16), dtype="Int64")),
        "run",
        right=good_fit,
    ),
    frame("32 bits", lambda t: t.assign(price=t["price"].astype("float32")), "run", right=good_fit),
    frame("16 bits", lambda t: t.assign(price=t["price"].astype("float16")), "either", right=good_fit),
    frame(
        "64 bits without sign",
        lambda t: t.assign(more=np.uint64(2**63) + np.arange(len(t), dtype=np.uint64)),
        "either",
        right=good_fit,
    ),
    frame("a category", lambda t: t.assign(shop=t["shop"].astype("category")), "run", right=good_fit),
    frame(
        "a categorical feature",
        lambda t: t.assign(more=pandas.Categorical(["a", "b", None] * 16)),
        "run",
        right=good_fit,
    ),
    frame("numbers of nodes", lambda t: t.assign(shop=t["shop"].str[-1].astype(float)), "run", right=good_fit),
    frame("a constant target", lambda t: t.assign(sales=3.25), "refuse"),
    frame("one odd value among equal ones", odd_one(np.array(3.25), 1.0), "either", options=("--features", "price")),
    frame("one odd value, as a number", odd_one(np.array(3.25), 1.0), "either", options=("--task", "regression")),
    frame("one odd value, huge", odd_one(np.array(3.25), 1e15), "either"),
    frame("one odd class", odd_one(np.array(0), 1), "either", options=("--task", "classification")),
    frame("a target that differs by rounding", lambda t: t.assign(sales=1 + 1e-16 * np.arange(len(t))), "either"),
    frame("a huge target", lambda t: t.assign(sales=t["sales"] * HUGE), "either"),
    frame("a target near the largest number", lambda t: t.assign(sales=t["sales"] * 1e306), "either"),
    frame("a tiny target", lambda t: t.assign(sales=t["sales"] * TINY), "either"),
    frame("a target below the smallest number", lambda t: t.assign(sales=t["sales"] * 1e-310), "either"),
    frame("a huge feature", lambda t: t.assign(price=t["price"] * HUGE), "either"),
    frame("a tiny feature", lambda t: t.assign(price=t["price"] * TINY), "either"),
    frame("a feature beside 1e15", lambda t: t.assign(price=t["price"] + 1e15), "either"),
    frame("a target beside 1e15", lambda t: t.assign(sales=t["sales"] + 1e15), "either"),
    frame("no row twice the same node", lambda t: t.assign(shop=[f"s{k}" for k in range(len(t))]), "either"),
    frame("one node", lambda t: t.assign(shop="a"), "refuse"),
    frame("two nodes", lambda t: t.head(24), "either"),
    frame("two rows", lambda t: t.iloc[[0, 13]], "refuse"),
    frame("three rows", lambda t: t.iloc[[0, 13, 26]], "either"),
    frame(
        "a node of one row",
        lambda t: pandas.concat([t, t.head(1).assign(shop="new")]),
        "run",
        right=lambda run: len(run.nodes) == 5,
    ),
    frame("the same row throughout", lambda t: t.assign(price=1.0, sales=2.0), "refuse"),
    frame("the target as a feature", lambda t: t.assign(copy=t["sales"]), "run", right=good_fit),
    frame("no feature", lambda t: t.drop(columns="price"), "run", right=four_levels),
    frame("only an empty feature", lambda t: t.assign(price=np.nan), "run", right=four_levels),
    frame("only a constant feature", lambda t: t.assign(price=1.0), "run", right=four_levels),
    frame(
        "a feature that training rows miss",
        lambda t: t.assign(more=np.where(np.arange(len(t)) == 47, 1.0, np.nan)),
        "either",
        right=good_fit,
    ),
    frame(
        "a hundred features",
        lambda t: t.join(pandas.DataFrame(np.random.default_rng(0).normal(size=(len(t), 100))).add_prefix("f")),
        "either",
    ),
    frame(
        "the same feature five times",
        lambda t: t.assign(**{f"f{k}": t["price"] for k in range(5)}),
        "run",
        right=good_fit,
    ),
    frame("a category of each row", lambda t: t.assign(more=[f"v{k}" for k in range(len(t))]), "run", right=good_fit),
    frame("names that differ by a space", renamed({"shop 3": "shop 2 "}), "refuse"),
    frame("names that look the same", renamed({"shop 2": "caf\u00e9", "shop 3": "cafe\u0301"}), "refuse"),
    frame("names that differ by case", renamed({"shop 3": "SHOP 2"}), "run", right=good_fit),
    frame("an empty name", renamed({"shop 3": ""}), "either", right=good_fit),
    frame("names with escapes", renamed({"shop 3": "\x1b]0;owned\x07\x1b[31m"}), "run", right=good_fit),
    frame("names with zeros and breaks", renamed({"shop 3": "a\x00b\x0b\r\n\t\uffff"}), "run", right=good_fit),
    frame("names that are formulas", renamed({"shop 3": "=cmd|'/c calc'!A1"}), "run", right=good_fit),
    frame("names that are scripts", renamed({"shop 3": "</script><script>alert(1)</script>"}), "run", right=good_fit),
    frame("names that are paths", renamed({"shop 3": "../../../etc/passwd"}), "run", right=good_fit),
    frame("names that are called nan", renamed({"shop 3": "nan"}), "run", right=good_fit),
    frame("a name of a million letters", renamed({"shop 3": "x" * 1_000_000}), "either", right=good_fit),
    frame("names of right to left", renamed({"shop 3": "\u202eshop"}), "run", right=good_fit),
    frame("columns with escapes", lambda t: t.assign(**{"\x1b[31m\x00": t["price"]}), "either", right=good_fit),
    frame(
        "a column called like a member",
        lambda t: t.assign(tailored=t["price"], final=1, node="x"),
        "run",
        right=good_fit,
    ),
    frame("an empty column name", lambda t: t.assign(**{"": t["price"]}), "either", right=good_fit),
    frame("coordinates off the globe", lambda t: t.assign(lat=1000.0 + t["price"], lon=1e9), "either", right=good_fit),
    frame("coordinates that are missing", lambda t: t.assign(lat=np.nan, lon=np.nan), "either", right=good_fit),
    frame("all at one place", lambda t: t.assign(lat=1.0, lon=2.0), "either", right=good_fit),
    frame("infinite coordinates", lambda t: t.assign(lat=np.inf, lon=2.0), "either", options=("--coords", "lat,lon")),
    frame("counts below zero", lambda t: t.assign(sales=t["sales"] - 10), "refuse", options=("--task", "count")),
    frame(
        "counts of a billion",
        lambda t: t.assign(sales=(1e9 * np.abs(t["sales"])).round()),
        "either",
        options=("--task", "count"),
    ),
    frame(
        "counts of zero", lambda t: t.assign(sales=(np.arange(len(t)) == 7) * 1), "either", options=("--task", "count")
    ),
    frame(
        "a class in test rows only",
        lambda t: t.assign(
            sales=np.where(np.arange(len(t)) % 12 == 11, "b", np.where(t["price"] > 0, "a", "c")),
            time=np.arange(len(t)) % 12,
        ),
        "either",
        options=("--time", "time"),
    ),
    frame("a class for each row", lambda t: t.assign(sales=[f"c{k}" for k in range(len(t))]), "refuse"),
    frame("thirty classes", lambda t: t.assign(sales=[f"c{k % 30}" for k in range(len(t))]), "either"),
    frame("classes that nodes do not share", lambda t: t.assign(sales=t["shop"]), "either"),
    frame("separable classes", lambda t: t.assign(sales=t["price"] > 0), "either"),
]

# ---------------------------------------------------------------------- rows to predict


@dataclass(frozen=True)
class RowsCase:
    """Rows to predict, what must come of them, and when predictions are right."""

    name: str
    table: Callable[[], pandas.DataFrame]
    must: str
    right: Callable[[pandas.DataFrame], bool] = always
    options: tuple[str, ...] = ()


def finite(found: pandas.DataFrame) -> bool:
    """All predictions are numbers."""
    return bool(np.isfinite(found["predicted sales"]).all())


ROWS: list[RowsCase] = [
    RowsCase("the same rows", shops, "run", finite),
    RowsCase("other order of columns", lambda: shops()[["sales", "price", "shop"]], "run", finite),
    RowsCase("without the target", lambda: shops().drop(columns="sales"), "run", finite),
    RowsCase("without the node", lambda: shops().drop(columns="shop"), "refuse"),
    RowsCase("without the feature", lambda: shops().drop(columns="price"), "refuse"),
    RowsCase("no row", lambda: shops().head(0), "refuse"),
    RowsCase("a node never seen", lambda: shops().assign(shop="new"), "refuse"),
    RowsCase("a node never seen, pooled", lambda: shops().assign(shop="new"), "run", finite, ("--unknown", "pooled")),
    RowsCase("a missing node", lambda: shops().assign(shop=None), "refuse"),
    RowsCase("a name with a space", lambda: shops().assign(shop=shops()["shop"] + " "), "refuse"),
    RowsCase("infinity", lambda: shops().assign(price=np.inf), "refuse"),
    RowsCase("infinity as text", lambda: shops().assign(price="inf"), "refuse"),
    RowsCase("text", lambda: shops().assign(price="dear"), "refuse"),
    RowsCase("dates", lambda: shops().assign(price="2024-01-31"), "refuse"),
    RowsCase("real dates", lambda: shops().assign(price=pandas.Timestamp("2024-01-31")), "refuse"),
    RowsCase("true and false", lambda: shops().assign(price=True), "either", finite),
    RowsCase("lists", lambda: shops().assign(price=[[1.0]] * 48), "refuse"),
    RowsCase("missing numbers", lambda: shops().assign(price=np.nan), "run", finite),
    RowsCase("huge numbers", lambda: shops().assign(price=1e300), "either", finite),
    RowsCase("numbers as text", lambda: shops().assign(price=shops()["price"].astype(str)), "run", finite),
    RowsCase("an interval", shops, "run", lambda t: bool((t["low"] <= t["high"]).all()), ("--interval", "0.9")),
    RowsCase("an interval of everything", shops, "refuse", options=("--interval", "1")),
    RowsCase("an interval that is none", shops, "refuse", options=("--interval", "nan")),
    RowsCase("a role that is not there", shops, "refuse", options=("--role", "magic")),
    RowsCase("an unknown rule for unknowns", shops, "refuse", options=("--unknown", "guess")),
    RowsCase("trust for nothing", shops, "run", finite, ("--trust", "any.Name")),
    RowsCase("trust in a file that is not there", shops, "refuse", options=("--trust", "nothing.py")),
]

# ---------------------------------------------------------------------- rows that join a run


def new_rows(count: int = 3) -> pandas.DataFrame:
    """A few more sales of every shop."""
    return shops(12 + count).groupby("shop").tail(count).reset_index(drop=True)


UPDATES: list[tuple[str, Callable[[pandas.DataFrame], pandas.DataFrame], str]] = [
    ("as expected", lambda t: t, "run"),
    ("one row", lambda t: t.head(1), "run"),
    ("columns in another order, and one more", lambda t: t.assign(note="x")[["note", "sales", "price", "shop"]], "run"),
    ("a new shop", lambda t: t.assign(shop=t["shop"].replace("shop 0", "shop 9")), "run"),
    ("new shops only", lambda t: t.assign(shop="new " + t["shop"]), "run"),
    ("a shop with a script for a name", lambda t: t.assign(shop=t["shop"].replace("shop 0", "<script>")), "run"),
    ("some targets missing", lambda t: t.assign(sales=t["sales"].where(t.index % 2 == 0)), "run"),
    ("some prices missing", lambda t: t.assign(price=t["price"].where(t.index % 2 == 0)), "run"),
    ("no rows", lambda t: t.head(0), "refuse"),
    ("no targets", lambda t: t.assign(sales=np.nan), "refuse"),
    ("without the target", lambda t: t.drop(columns="sales"), "refuse"),
    ("without the node", lambda t: t.drop(columns="shop"), "refuse"),
    ("without a feature", lambda t: t.drop(columns="price"), "refuse"),
    ("texts as targets", lambda t: t.assign(sales="many"), "refuse"),
    ("texts as prices", lambda t: t.assign(price="dear"), "refuse"),
    ("infinite prices", lambda t: t.assign(price=np.inf), "refuse"),
    ("huge targets", lambda t: t.assign(sales=1e200), "refuse"),
    ("nodes missing", lambda t: t.assign(shop=None), "refuse"),
    ("a shop with a space more", lambda t: t.assign(shop=t["shop"] + " "), "refuse"),
    ("the rows of the run again", lambda t: shops(), "refuse"),
]


# ---------------------------------------------------------------------- options

FIT = ["fit", "TABLE", "FLAGS"]
OPTIONS: list[tuple[list[str], str]] = [
    ([*FIT, "--seed", "0"], "run"),
    ([*FIT, "--seed", str(2**31)], "run"),
    ([*FIT, "--seed", str(2**32)], "refuse"),
    ([*FIT, "--seed", str(2**63)], "refuse"),
    ([*FIT, "--seed", str(10**30)], "refuse"),
    ([*FIT, "--seed", "-1"], "refuse"),
    ([*FIT, "--seed", "1.5"], "refuse"),
    ([*FIT, "--folds", "1000"], "either"),
    ([*FIT, "--folds", "1"], "refuse"),
    ([*FIT, "--folds", "0"], "refuse"),
    ([*FIT, "--folds", "many"], "refuse"),
    ([*FIT, "--folds", str(10**20)], "either"),
    ([*FIT, "--lam", "nan"], "refuse"),
    ([*FIT, "--lam", "inf"], "refuse"),
    ([*FIT, "--lam", "-1"], "refuse"),
    ([*FIT, "--lam", "0"], "run"),
    ([*FIT, "--lam", "1e300"], "either"),
    ([*FIT, "--lam", "1e-300"], "either"),
    ([*FIT, "--lam", "much"], "refuse"),
    ([*FIT, "--test", "0"], "refuse"),
    ([*FIT, "--test", "1"], "refuse"),
    ([*FIT, "--test", "nan"], "refuse"),
    ([*FIT, "--test", "1e-300"], "either"),
    ([*FIT, "--test", "0.999999"], "either"),
    ([*FIT, "--test", "price"], "either"),
    ([*FIT, "--time", "shop"], "refuse"),
    ([*FIT, "--time", "price"], "run"),
    ([*FIT, "--hold", "nodes"], "either"),
    ([*FIT, "--hold", "regions"], "refuse"),
    ([*FIT, "--hold", "everything"], "refuse"),
    ([*FIT, "--neighbours", "0"], "refuse"),
    ([*FIT, "--neighbours", "1000000"], "run"),
    ([*FIT, "--neighbours", str(10**30)], "either"),
    ([*FIT, "--graph", "complete"], "run"),
    ([*FIT, "--graph", "coordinates"], "refuse"),
    ([*FIT, "--graph", "mesh"], "refuse"),
    ([*FIT, "--model", "oracle"], "refuse"),
    ([*FIT, "--model", "nothing.py:Name"], "refuse"),
    ([*FIT, "--method", "magic"], "refuse"),
    ([*FIT, "--members", ","], "either"),
    ([*FIT, "--members", "pooled,pooled"], "either"),
    ([*FIT, "--members", "nothing"], "refuse"),
    ([*FIT, "--members", "pooled"], "either"),
    ([*FIT, "--features", "price,price"], "run"),
    ([*FIT, "--features", "nothing"], "refuse"),
    ([*FIT, "--features", "shop"], "either"),
    ([*FIT, "--features", "sales"], "refuse"),
    ([*FIT, "--features", ","], "either"),
    ([*FIT, "--categorical", "nothing"], "refuse"),
    ([*FIT, "--categorical", "price"], "either"),
    ([*FIT, "--coords", "price"], "refuse"),
    ([*FIT, "--coords", "price,price"], "either"),
    ([*FIT, "--coords", "shop,price"], "refuse"),
    ([*FIT, "--task", "poetry"], "refuse"),
    ([*FIT, "--task", "count"], "either"),
    ([*FIT, "--task", "classification"], "either"),
    ([*FIT, "--task", "quantile", "--quantile", "0"], "refuse"),
    ([*FIT, "--task", "quantile", "--quantile", "0.999"], "either"),
    ([*FIT, "--quantile", "0.9"], "refuse"),
    ([*FIT, "--node", "sales"], "refuse"),
    ([*FIT, "--node", "price"], "either"),
    ([*FIT, "--target", "shop"], "refuse"),
    ([*FIT, "--edges", "TABLE"], "refuse"),
    ([*FIT, "--edges", "nothing.csv"], "refuse"),
    ([*FIT, "--out", ""], "refuse"),
    ([*FIT, "--out", "."], "refuse"),
    ([*FIT, "--out", ".."], "refuse"),
    ([*FIT, "--out", "/"], "refuse"),
    ([*FIT, "--out", "x" * 250], "refuse"),
    ([*FIT, "--out", "x" * 244], "run"),
    ([*FIT, "--out", "/proc/run"], "refuse"),
    ([*FIT, "--out", "/dev/null"], "refuse"),
    ([*FIT, "--out", "TABLE"], "refuse"),
    ([*FIT, "--out", "TABLE/run"], "refuse"),
    ([*FIT, "--out", "a b\n\x1b[31m"], "run"),
    ([*FIT, "--out", "run/../other"], "either"),
    ([*FIT, "--out", "-run"], "either"),
    ([*FIT, "--out", "\udcff"], "either"),
    (["fit", "TABLE"], "refuse"),
    (["fit", "nothing.csv", "FLAGS"], "refuse"),
    (["fit", "RUN", "FLAGS"], "refuse"),
    (["fit", "RUN/metrics.json", "FLAGS"], "refuse"),
    (["fit", "RUN/report.html", "FLAGS"], "refuse"),
    (["fit", "RUN/run.toml", "--out", "again"], "run"),
    (["predict", "RUN", "nothing.csv"], "refuse"),
    (["predict", "nothing", "TABLE"], "refuse"),
    (["predict", "TABLE", "TABLE"], "refuse"),
    (["predict", "RUN", "TABLE", "--out", "/proc/x.csv"], "refuse"),
    (["predict", "RUN", "TABLE", "--out", "no/such/folder.csv"], "refuse"),
    (["predict", "RUN", "TABLE", "--out", "TABLE"], "refuse"),
    (["predict", "RUN", "TABLE", "--out", "RUN/run.toml"], "refuse"),
    (["predict", "RUN", "TABLE", "--out", "."], "refuse"),
    (["show", "nothing"], "refuse"),
    (["show", "TABLE"], "refuse"),
    (["show", "RUN", "--json"], "run"),
    (["report", "RUN", "--out", "/proc/x.html"], "refuse"),
    (["report", "RUN", "--out", "TABLE"], "refuse"),
    (["compare", "TABLE", "FLAGS", "--methods", "gtvmin"], "refuse"),
    (["compare", "TABLE", "--node", "shop", "--target", "sales", "--folds", "2", "--methods", "magic"], "refuse"),
    (["data", "nothing"], "refuse"),
    (["demo", "nothing"], "refuse"),
    (["reproduce", "nothing"], "refuse"),
    (["magic"], "refuse"),
]

# ---------------------------------------------------------------------- environments


@dataclass(frozen=True)
class Setting:
    """How the system is, which exit codes are right, and when output is."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)  # of resources
    shell: str = '"$@"'
    codes: tuple[int, ...] = (0,)
    right: Callable[[Path, str], bool] = lambda place, out: True


def in_process(words: list[str], place: Path, setting: Setting) -> tuple[int, str, str]:
    """Run a command in such an environment; its code and what it printed."""

    def limited() -> None:
        for which, most in setting.limits.items():
            resource.setrlimit(which, (most, most))

    done = subprocess.run(
        ["bash", "-c", setting.shell, "bash", *words], cwd=place, env={**os.environ, **setting.variables},
        capture_output=True, preexec_fn=limited, check=False, timeout=55,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def all_rows(place: Path, out: str) -> bool:
    """A line for every row, and the header."""
    return len(out.strip().splitlines()) == 49


PREDICT, SHOW = ["predict", "run", "t.csv"], ["show", "run"]
FIT_HERE = [
    "fit", "t.csv", "--node", "shop", "--target", "sales", "--lam", "1", "--folds", "2", "--members", "pooled,slopes",
    "--out", "new",
]  # fmt: skip
ENVIRONMENTS: list[tuple[list[str], Setting]] = [
    (PREDICT, Setting("plain", right=all_rows)),
    (PREDICT, Setting("output in ASCII", {"PYTHONIOENCODING": "ascii"}, right=all_rows)),
    (PREDICT, Setting("the C locale", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, right=all_rows)),
    (
        PREDICT,
        Setting(
            "a reader that has gone", shell='"$@" | head -1 > /dev/null; exit ${PIPESTATUS[0]}', codes=(0, 1, 120, 141)
        ),
    ),
    (PREDICT, Setting("no standard output", shell='"$@" >&-', codes=(0, 1, 120))),
    (PREDICT, Setting("a full device", shell='"$@" > /dev/full', codes=(1, 120))),
    (PREDICT, Setting("no home", {"HOME": "/nowhere"}, right=all_rows)),
    (
        SHOW,
        Setting("output in ASCII", {"PYTHONIOENCODING": "ascii"}, right=lambda place, out: "one model for all" in out),
    ),
    (
        SHOW,
        Setting("latin letters", {"PYTHONIOENCODING": "latin-1"}, right=lambda place, out: "one model for all" in out),
    ),
    (SHOW, Setting("one column", {"COLUMNS": "1"})),
    (SHOW, Setting("no column", {"COLUMNS": "0"})),
    (SHOW, Setting("a dumb terminal", {"TERM": "dumb"})),
    (SHOW, Setting("no standard input", shell='"$@" <&-')),
    (SHOW, Setting("few open files", limits={resource.RLIMIT_NOFILE: 40})),
    (SHOW, Setting("a folder that is gone", shell='mkdir x && cd x && rmdir ../x && "$@"', codes=(1,))),
    (
        FIT_HERE,
        Setting("output in ASCII", {"PYTHONIOENCODING": "ascii"}, right=lambda place, out: (place / "new").is_dir()),
    ),
    (FIT_HERE, Setting("files of a kilobyte", limits={resource.RLIMIT_FSIZE: 1_000}, codes=(1,))),
    (FIT_HERE, Setting("files of a megabyte", limits={resource.RLIMIT_FSIZE: 1_000_000}, codes=(1,))),
    (FIT_HERE, Setting("nowhere to write", shell='cd /proc && "$@"', codes=(1,))),
    (FIT_HERE, Setting("errors to nowhere", shell='"$@" 2>&-', right=lambda place, out: (place / "new").is_dir())),
]
