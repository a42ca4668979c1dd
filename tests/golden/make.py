"""Golden results: what the table job gives today, on one table and across sites, as files to compare with later.

    python tests/golden/make.py                 run all cases, and write tests/golden/results/<case>.json; minutes
    python tests/golden/make.py --quick         those that tests/test_golden.py runs again
    python tests/golden/make.py NAME ...        some of them
    python tests/golden/make.py --list          what there is

A file holds the leaderboard, the values that were chosen, weights, numbers of the judgement, and 20 predictions with
the widths of their 90 % intervals. ``information`` is not compared. Set OMP_NUM_THREADS=1, as the tests do. Results are
stored anew only where a change is meant; say so in the commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.cases import CASES, Case
from golden.running import Result

RESULTS = Path(__file__).parent / "results"
INFORMATION = "information"  # that is not compared


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dictionaries, as JSON has them; no number is null.

    >>> plain({"a": np.array([1.5, np.nan]), "b": (np.int64(2), True)})
    {'a': [1.5, None], 'b': [2, True]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(vars(value))
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray | pandas.Series):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def written(value: Any, indent: str = "") -> str:
    """JSON with a line for every entry; what has no entries that are dictionaries themselves stays on one line.

    >>> print(written({"a": [1, 2], "b": {"c": 1.5}}))
    {
      "a": [1, 2],
      "b": {"c": 1.5}
    }
    """
    deeper = indent + "  "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        lines = [f"{deeper}{json.dumps(name)}: {written(each, deeper)}" for name, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(f"{deeper}{written(each, deeper)}" for each in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def result_of(case: Case) -> Result:
    """Run a case; what is stored of it."""
    found: Result = plain({"about": case.about, **case.run()})
    return found | {INFORMATION: found.pop(INFORMATION)}  # at the end


def stored(name: str) -> Result:
    """The stored result of a case."""
    found: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Run the cases that are asked for, and write what they give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; all by default")
    parser.add_argument("--quick", action="store_true", help="leave out those that take long")
    parser.add_argument("--list", action="store_true", help="list the cases, and run none")
    parser.add_argument("--out", type=Path, default=RESULTS, help="another folder for the results")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in CASES]
    if unknown:
        parser.error(f"expected some of {', '.join(CASES)}, got {', '.join(unknown)}")
    chosen = {name: CASES[name] for name in given.names or CASES if CASES[name].quick or not given.quick}
    if given.list:
        print(*(f"{name:26}{'' if case.quick else 'full: '}{case.about}" for name, case in chosen.items()), sep="\n")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    for name, case in chosen.items():
        if case.missing:
            print(f"{name:26}skipped: no {case.missing}", flush=True)
            continue
        start = time.process_time()
        text = written(result_of(case)) + "\n"
        (given.out / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name:26}{time.process_time() - start:8.1f} CPU seconds", flush=True)
    print(f"{'all':26}{time.process_time() - began:8.1f} CPU seconds")


if __name__ == "__main__":
    main()
