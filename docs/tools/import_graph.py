"""Draw which room of the package imports from which, as docs/import-graph.svg.

    python docs/tools/import_graph.py          writes the picture
    python docs/tools/import_graph.py --check  fails if the picture is out of date

A room stands one layer above the highest room that it imports from, so that all arrows point down. An arrow that
follows from others is left out: tables import from network, too, but they already reach it through algorithms.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import NamedTuple

from rooms import HOUSE, ROOMS, import_arrows

PICTURE = Path(__file__).parents[1] / "import-graph.svg"
BOX, BAND, GAP, MARGIN = (164, 48), 92, 24, 20  # a box, the height of a layer, between two boxes, around everything
LANE = 14  # the width that an arrow needs where it passes a layer
STIFF = 8  # how much straighter an arrow is where it passes layers
SWEEPS = 24
STYLE = """\
.card { fill: #ffffff; stroke: #d5dedc }
.room { fill: #e3f3f0; stroke: #00796b; stroke-width: 1.2 }
.file { fill: #f4f4f1; stroke: #8a8f8d; stroke-width: 1.2 }
.arrow { fill: none; stroke: #54706b; stroke-width: 1.3; marker-end: url(#head) }
.head { fill: #54706b }
text { font-family: system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; text-anchor: middle; fill: #16302c }
.name { font-size: 16.5px; font-weight: 600 }
.what { font-size: 12.5px; fill: #48605b }"""


class Spot(NamedTuple):
    """A place in a layer: a room, or where an arrow passes by on its way to a room further down."""

    layer: int
    room: str
    above: str = ""  # where an arrow that passes by comes from


Layers = list[list[Spot]]
Steps = list[tuple[Spot, Spot]]  # from one layer to the next below


# ---------------------------------------------------------------------- what is drawn


def layers_of(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The layer of every room: one above the highest that it imports from."""
    layer: dict[str, int] = {}
    for room in ROOMS:
        layer[room] = 1 + max((layer[below] for below in arrows[room]), default=-1)
    return layer


def reduced(arrows: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""
    reach: dict[str, set[str]] = {}
    for room in ROOMS:
        reach[room] = arrows[room].union(*(reach[below] for below in arrows[room]))
    return [
        (room, below)
        for room in ROOMS
        for below in sorted(arrows[room], key=[*ROOMS].index)
        if not any(below in reach[other] for other in arrows[room])
    ]


def routes(arrows: dict[str, set[str]]) -> list[list[Spot]]:
    """Every arrow as a row of spots, one per layer, from the room that imports down to the one it imports from."""
    layer = layers_of(arrows)
    return [
        [
            Spot(layer[upper], upper),
            *(Spot(k, lower, upper) for k in range(layer[upper] - 1, layer[lower], -1)),
            Spot(layer[lower], lower),
        ]
        for upper, lower in reduced(arrows)
    ]


# ---------------------------------------------------------------------- from left to right


def ordered(layers: Layers, steps: Steps) -> Layers:
    """Each layer from left to right, so that few arrows cross: sorted by the mean place of the neighbours."""
    best, fewest = layers, crossings(layers, steps)
    for sweep in range(SWEEPS):
        layers = [list(layer) for layer in layers]
        down = sweep % 2 == 0
        for k in range(len(layers))[:: -1 if down else 1]:
            layers[k].sort(key=centres(layers, steps, k, k + 1 if down else k - 1).__getitem__)
        layers = exchanged(layers, steps)
        if crossings(layers, steps) < fewest:
            best, fewest = layers, crossings(layers, steps)
    return best


def centres(layers: Layers, steps: Steps, k: int, other: int) -> dict[Spot, float]:
    """Mean place of the neighbours in another layer; a spot without any stays where it is. Places are from 0 to 1."""
    place = places(layers)
    found = {}
    for spot in layers[k]:
        near = [place[b if a == spot else a] for a, b in steps if spot in (a, b) and other in (a.layer, b.layer)]
        found[spot] = fsum(near) / len(near) if near else place[spot]
    return found


def places(layers: Layers) -> dict[Spot, float]:
    """Where a spot stands in its layer, from 0 to 1."""
    return {spot: (k + 0.5) / len(layer) for layer in layers for k, spot in enumerate(layer)}


def exchanged(layers: Layers, steps: Steps) -> Layers:
    """Exchange neighbours in a layer as long as that saves crossings."""
    fewest, better = crossings(layers, steps), True
    while better:
        better = False
        for layer in layers:
            for k in range(len(layer) - 1):
                layer[k], layer[k + 1] = layer[k + 1], layer[k]
                now = crossings(layers, steps)
                if now < fewest:
                    fewest, better = now, True
                else:
                    layer[k], layer[k + 1] = layer[k + 1], layer[k]
    return layers


def crossings(layers: Layers, steps: Steps) -> int:
    """How many pairs of arrows cross."""
    place = places(layers)
    return sum(
        (place[a] - place[c]) * (place[b] - place[d]) < 0
        for k, (a, b) in enumerate(steps)
        for c, d in steps[:k]
        if a.layer == c.layer
    )


def positions(layers: Layers, steps: Steps) -> dict[Spot, float]:
    """The x of every spot: near its neighbours, in order, and with room enough between two."""
    x = {spot: place * 4 * BOX[0] for spot, place in places(layers).items()}
    for sweep in range(40 * SWEEPS):
        for layer in layers[:: -1 if sweep % 2 else 1]:
            wished = []
            for spot in layer:
                touching = [step for step in steps if spot in step]
                weights = [STIFF if a.above and b.above else 1 for a, b in touching]
                near = [weight * x[b if a == spot else a] for weight, (a, b) in zip(weights, touching, strict=True)]
                wished.append(fsum(near) / sum(weights) if near else x[spot])
            x.update(zip(layer, apart(wished, layer), strict=True))
    left = min(x[spot] - width(spot) / 2 for spot in x)
    return {spot: round(at - left + MARGIN) for spot, at in x.items()}


def width(spot: Spot) -> float:
    """Of a box, or of the lane of an arrow."""
    return LANE if spot.above else BOX[0]


def apart(wished: list[float], layer: list[Spot]) -> list[float]:
    """The places nearest to those wished, in the squared sense, at which nothing overlaps."""
    offsets = [0.0]
    for a, b in pairwise(layer):
        offsets.append(offsets[-1] + (width(a) + width(b)) / 2 + GAP)
    blocks: list[tuple[float, int]] = []  # mean and count of spots that touch
    for wish, offset in zip(wished, offsets, strict=True):
        block = (wish - offset, 1)
        while blocks and blocks[-1][0] >= block[0]:
            mean, count = blocks.pop()
            block = ((mean * count + block[0] * block[1]) / (count + block[1]), count + block[1])
        blocks.append(block)
    shifts = [mean for mean, count in blocks for _ in range(count)]
    return [shift + offset for shift, offset in zip(shifts, offsets, strict=True)]


# ---------------------------------------------------------------------- the picture


def drawn(arrows: dict[str, set[str]]) -> str:
    """The picture as SVG."""
    ways = routes(arrows)
    layer = layers_of(arrows)
    layers: Layers = [[Spot(k, room) for room in ROOMS if layer[room] == k] for k in range(1 + max(layer.values()))]
    for spot in (spot for way in ways for spot in way if spot.above):
        layers[spot.layer].append(spot)
    steps = [step for way in ways for step in pairwise(way)]
    layers = ordered(layers, steps)
    x = positions(layers, steps)
    wide = max(x[spot] + width(spot) / 2 for spot in x) + MARGIN
    high = (len(layers) - 1) * BAND + BOX[1] + 2 * MARGIN
    top = {spot: high - MARGIN - BOX[1] - spot.layer * BAND for spot in x}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" width="{wide:.0f}" height="{high}"'
        ' role="img" aria-labelledby="title">',
        '<title id="title">The rooms of kinfolk: an arrow points to the room that is imported from</title>',
        f"<style>\n{STYLE}\n</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0.8 8 4 0 7.2z"/></marker>',
        f'<rect class="card" x="0.5" y="0.5" width="{wide - 1:.0f}" height="{high - 1}" rx="10"/>',
        *(f'<path class="arrow" d="{curve(way, ways, x, top)}"/>' for way in ways),
        *(line for spot in sorted(x) if not spot.above for line in box(spot, x[spot], top[spot])),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def curve(way: list[Spot], ways: list[list[Spot]], x: dict[Spot, float], top: dict[Spot, int]) -> str:
    """From the lower edge of one box to the upper edge of another, straight past the layers between."""
    leaving = sorted((other[1:] for other in ways if other[0] == way[0]), key=lambda rest: x[rest[0]])
    coming = sorted((other[:-1] for other in ways if other[-1] == way[-1]), key=lambda rest: x[rest[-1]])
    start = x[way[0]] + port(leaving.index(way[1:]), len(leaving))
    end = x[way[-1]] + port(coming.index(way[:-1]), len(coming))
    at, text = (start, top[way[0]] + BOX[1]), f"M{start:g} {top[way[0]] + BOX[1]}"
    for spot in way[1:]:
        to = (x[spot] if spot.above else end, top[spot])
        middle = (at[1] + to[1]) / 2
        text += f" C{at[0]:g} {middle:g} {to[0]:g} {middle:g} {to[0]:g} {to[1]}"
        if spot.above:
            text += f" V{to[1] + BOX[1]}"
        at = (to[0], to[1] + BOX[1])
    return text


def port(k: int, count: int) -> float:
    """Where the k-th of some arrows meets a box, from its middle."""
    return round((k - (count - 1) / 2) * min(24, 0.8 * BOX[0] / count))


def box(spot: Spot, x: float, y: int) -> list[str]:
    """A room: its name, and what it is for."""
    kind = "room" if (HOUSE / spot.room).is_dir() else "file"
    return [
        f'<rect class="{kind}" x="{x - BOX[0] / 2:g}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="7"/>',
        f'<text class="name" x="{x:g}" y="{y + 21}">{spot.room}</text>',
        f'<text class="what" x="{x:g}" y="{y + 38}">{ROOMS[spot.room]}</text>',
    ]


def main(words: list[str]) -> int:
    """Write the picture, or check it."""
    picture = drawn(import_arrows())
    if words == ["--check"]:
        if PICTURE.is_file() and PICTURE.read_text(encoding="utf-8") == picture:
            return 0
        print(f"docs/{PICTURE.name} is out of date: run python docs/tools/import_graph.py", file=sys.stderr)
        return 1
    if words:
        print(f"Expected nothing or --check, got {' '.join(words)}.", file=sys.stderr)
        return 2
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
