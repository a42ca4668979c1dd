"""Real data sets as tables for ``kinfolk fit``: one that comes with the package, others from a folder of the user's.

Nothing is tuned: columns are the source's own, plus what was known before the target (values of the past).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.datasets.builtin import load_us_counties
from kinfolk.datasets.folder import find_file

AHEAD = 3  # steps of five minutes between what a sensor knows and what it predicts
EVERY = 6  # steps of five minutes between two rows of a sensor


@dataclass(frozen=True, eq=False)
class NamedTable:
    """A table, perhaps with the edges of a graph, and the options of ``kinfolk fit`` that suit it."""

    title: str
    frame: pandas.DataFrame
    options: dict[str, str]  # node, target and such
    edges: pandas.DataFrame | None = None


def named_table(name: str, folder: str | Path | None = None) -> NamedTable:
    """A data set by name; those that do not come with the package are read from ``folder`` or KINFOLK_DATA.

    >>> named_table("counties").options
    {'node': 'county', 'target': 'log_turnout'}
    """
    if name not in TABLES:
        raise InputError(f"Expected one of {', '.join(TABLES)}, got {name!r}.")
    return TABLES[name](folder)


def _counties(folder: str | Path | None) -> NamedTable:
    """US counties of 1980: turnout at the election, on schooling, home ownership and income (comes with kinfolk)."""
    counties = load_us_counties()
    return NamedTable(
        counties.title, counties.frame, {"node": counties.node, "target": counties.target}, counties.graph.to_frame()
    )


def _stations(folder: str | Path | None) -> NamedTable:
    """Finnish weather stations, winter of 2026: the highest temperature of tomorrow, from today's (FMI, CC BY 4.0)."""
    raw = pandas.read_csv(find_file("fmi_weather", "fmi_daily_2026.csv.gz", folder)).sort_values(["station", "day"])
    raw["tmax_tomorrow"] = raw.groupby("station")["tmax"].shift(-1)
    frame = raw.dropna().reset_index(drop=True)
    return NamedTable("Finnish weather stations", frame, {"node": "station", "target": "tmax_tomorrow", "time": "day"})


def _hospitals(folder: str | Path | None) -> NamedTable:
    """Four hospitals: heart disease or not (Janosi, Steinbrunn, Pfisterer, Detrano; UCI)."""
    raw = pandas.read_csv(find_file("heart_disease", "heart_disease.csv", folder))
    frame = raw.drop(columns="num").assign(disease=np.where(raw["num"] > 0, "yes", "no"))
    categorical = "cp,restecg,slope,thal"
    return NamedTable("Four hospitals", frame, {"node": "site", "target": "disease", "categorical": categorical})


def _schools(folder: str | Path | None) -> NamedTable:
    """139 schools of London: exam scores of pupils (Inner London Education Authority)."""
    with np.load(find_file("school", "school.npz", folder), allow_pickle=False) as raw:
        frame = pandas.DataFrame(raw["X"].astype(float), columns=[f"x{k}" for k in range(raw["X"].shape[1])])
        frame = frame.assign(school=raw["school"], score=raw["y"].astype(float))
    return NamedTable("139 schools", frame, {"node": "school", "target": "score"})


def _sensors(folder: str | Path | None) -> NamedTable:
    """207 traffic sensors of Los Angeles, one week: the speed in a quarter of an hour, from the last ones (METR-LA)."""
    with np.load(find_file("metr_la", "metr_la_week.npz", folder), allow_pickle=False) as raw:
        speed, names, places = raw["speed"].astype(float), raw["sensor_id"], raw["latlon"]
    now = np.arange(AHEAD, len(speed) - AHEAD, EVERY)
    columns = {f"speed_{5 * lag}_minutes_ago": speed[now - lag].T.ravel() for lag in range(1, AHEAD + 1)}
    frame = pandas.DataFrame({
        "sensor": np.repeat(names, len(now)),
        "lat": np.repeat(places[:, 0], len(now)),
        "lon": np.repeat(places[:, 1], len(now)),
        "time": np.tile(pandas.Timestamp("2012-03-01") + pandas.to_timedelta(5 * now, unit="min"), len(names)),
        "speed_now": speed[now].T.ravel(),
        **columns,
        "speed_later": speed[now + AHEAD].T.ravel(),
    })  # fmt: skip
    return NamedTable("207 traffic sensors", frame, {"node": "sensor", "target": "speed_later", "time": "time"})


def _homes(folder: str | Path | None) -> NamedTable:
    """17 homes in California, one year: electricity of the next hour, from the last day and the weather (CityLearn)."""
    with np.load(find_file("building_electricity", "citylearn2022.npz", folder), allow_pickle=False) as raw:
        load, weather, calendar = raw["load_kwh"].astype(float), raw["weather"].astype(float), raw["calendar"]
        names = [*map(str, raw["weather_columns"])], [*map(str, raw["calendar_columns"])]
    now, homes = np.arange(24, load.shape[1]), len(load)
    columns = {name: np.tile(weather[now, k], homes) for k, name in enumerate(names[0])}
    columns |= {name: np.tile(calendar[now, k], homes) for k, name in enumerate(names[1])}
    frame = pandas.DataFrame({
        "home": np.repeat([f"home {k + 1:02d}" for k in range(homes)], len(now)),
        "hours": np.tile(now, homes),
        "kwh_last_hour": load[:, now - 1].ravel(),
        "kwh_yesterday": load[:, now - 24].ravel(),
        **columns,
        "kwh": load[:, now].ravel(),
    })  # fmt: skip
    features = ",".join(["kwh_last_hour", "kwh_yesterday", *names[0], "hour", "day_type"])
    options = {
        "node": "home",
        "target": "kwh",
        "time": "hours",
        "features": features,
        "categorical": "hour,day_type",
    }
    return NamedTable("17 homes", frame, options)


def _wind(folder: str | Path | None) -> NamedTable:
    """Wind at 12 stations in Ireland, 1961 to 1978: tomorrow's, from today's and the week's (Haslett and Raftery)."""
    return NamedTable("Wind in Ireland", _wind_rows(folder), WIND)


def _wind_recent(folder: str | Path | None) -> NamedTable:
    """Wind at the same stations, the last six months alone."""
    frame = _wind_rows(folder)
    recent = frame["day"] > frame["day"].max() - pandas.DateOffset(months=6)
    return NamedTable("Wind in Ireland, six months", frame[recent].reset_index(drop=True), WIND)


def _wind_rows(folder: str | Path | None) -> pandas.DataFrame:
    """A row for every station and day that has a week before it and a day after it; speeds in knots."""
    stations = pandas.read_csv(find_file("wind_ireland", "stations.csv", folder)).sort_values("code")
    speed = pandas.read_csv(find_file("wind_ireland", "wind_daily.csv.gz", folder), index_col="date", parse_dates=True)
    speed = speed[stations["code"]]
    values = {
        "speed_today": speed,
        "speed_yesterday": speed.shift(1),
        "speed_week": speed.rolling(7).mean(),
        "speed_tomorrow": speed.shift(-1),
    }
    columns = {name: each.to_numpy(dtype=float).T.ravel() for name, each in values.items()}
    keys = stations[["station", "lat", "lon"]]
    frame = keys.loc[keys.index.repeat(len(speed))].reset_index(drop=True)
    return frame.assign(day=np.tile(speed.index, len(stations)), **columns).dropna().reset_index(drop=True)


WIND = {"node": "station", "target": "speed_tomorrow", "time": "day"}
TABLES: Mapping[str, Callable[[str | Path | None], NamedTable]] = {
    "counties": _counties,
    "stations": _stations,
    "hospitals": _hospitals,
    "schools": _schools,
    "sensors": _sensors,
    "homes": _homes,
    "wind": _wind,
    "wind-recent": _wind_recent,
}
