"""The service: a FastAPI application around one run. Every refusal is JSON with one sentence, ``{"error": ...}``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as PlainHTTPException

from kinfolk.checks import InputError
from kinfolk.report.page import page_html, templates
from kinfolk.serving.limits import BoundedBody, KnownHosts
from kinfolk.serving.questions import Answer, Health, NodeFacts, Question, Refusal, answer
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.table_run import TableRun
from kinfolk.version import __version__

MEGABYTE = 1_000_000
LARGEST_REQUEST = 10 * MEGABYTE
REFUSALS: dict[int | str, dict[str, Any]] = {422: {"model": Refusal}, 413: {"model": Refusal}}


def service(run: TableRun, *, largest: int = LARGEST_REQUEST, hosts: Sequence[str] = ()) -> FastAPI:
    """A run as a web application, for uvicorn or any other server of ASGI.

    Parameters
    ----------
    run : TableRun
        A finished run, as ``learn`` and ``load`` return it.
    largest : int
        Bytes of the largest request.
    hosts : sequence of str
        Names by which the service may be called; none: any. Pages of other sites cannot call it then.

    Returns
    -------
    fastapi.FastAPI
        The application: ``POST /predict``, ``GET /health``, ``/nodes``, ``/report``, ``/openapi.json``, and a page at
        ``/`` that works without a network.

    >>> import numpy as np
    >>> from kinfolk import learn
    >>> rng = np.random.default_rng(0)
    >>> shops = pandas.DataFrame({"shop": np.repeat(list("abcd"), 20), "price": rng.normal(size=80)})
    >>> shops["sales"] = np.repeat([1.0, 1.0, -1.0, -1.0], 20) * shops["price"] + 0.1 * rng.normal(size=80)
    >>> app = service(learn(shops, node="shop", target="sales", progress=False))
    >>> sorted(app.openapi()["paths"])
    ['/health', '/nodes', '/nodes/{name}', '/predict']
    """
    made = FastAPI(
        title=f"kinfolk: {run.columns.target} for each {run.columns.node}", version=__version__, docs_url=None,
        redoc_url=None, description="Predictions of tailored models, with intervals.",
    )  # fmt: skip
    _add_answers(made, run)
    _add_pages(made, run)
    for kind, handler in ((InputError, _refused), (RequestValidationError, _malformed), (PlainHTTPException, _plain)):
        made.add_exception_handler(kind, handler)
    made.add_middleware(BoundedBody, largest=largest)
    made.add_middleware(KnownHosts, hosts=hosts)
    return made


def _add_answers(made: FastAPI, run: TableRun) -> None:
    facts = _node_facts(run)

    @made.post("/predict", responses=REFUSALS, response_model_exclude_none=True)
    def predict(question: Question) -> Answer:
        """Predict rows; each has the node and the features."""
        return answer(run, question)

    @made.get("/health")
    def health() -> Health:
        """Whether the service is there."""
        return Health(
            kinfolk=__version__, target=run.columns.target, nodes=len(facts), fingerprint=run.made.fingerprint
        )

    @made.get("/nodes")
    def nodes() -> list[NodeFacts]:
        """The nodes that were learnt."""
        return list(facts.values())

    @made.get("/nodes/{name:path}", responses={404: {"model": Refusal}})
    def node(name: str) -> NodeFacts:
        """One node."""
        if name not in facts:
            raise HTTPException(404, f"Expected a node that was learnt, got {name!r}: GET /nodes lists them.")
        return facts[name]


def _add_pages(made: FastAPI, run: TableRun) -> None:
    """Pages for people: nothing on them is fetched from elsewhere."""
    report = cache(lambda: page_html(run.facts))

    @made.get("/", include_in_schema=False, response_class=HTMLResponse)
    @made.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    def page() -> str:
        first = {run.columns.node: str(run.graph.names[0]), **example(run.encoder)}
        question = {"rows": [first], **({} if run.intervals is None else {"interval": 0.9})}
        text = json.dumps(question, indent=1, ensure_ascii=False)
        return templates().get_template("service.html").render(run=run, question=text, api=made.openapi())

    @made.get("/report", include_in_schema=False, response_class=HTMLResponse)
    def whole_report() -> str:
        return report()


def example(encoder: Encoder) -> dict[str, Any]:
    """A value for every column: the mean, a category, or the middle of the dates."""
    numbers = {each.name: None if each.mean is None else float(f"{each.mean:.3g}") for each in encoder.numbers}
    categories = {each.name: next(iter(each.shown), "missing") for each in encoder.categories}
    dates = {each.name: pandas.Timestamp(each.middle, unit="s").isoformat()[:10] for each in encoder.dates}
    return {**numbers, **categories, **dates}


def _node_facts(run: TableRun) -> dict[str, NodeFacts]:
    table = run.nodes
    errors = [None if pandas.isna(each) else float(each) for each in table["error_final"]]
    columns = zip(map(str, table.index), table["train_rows"], table["test_rows"], errors, table["group"], strict=True)
    return {
        name: NodeFacts(node=name, train_rows=int(train), test_rows=int(test), error=error, group=int(group))
        for name, train, test, error, group in columns
    }


# ---------------------------------------------------------------------- refusals


def refusal(status: int, sentence: str) -> JSONResponse:
    """A sentence as JSON."""
    return JSONResponse({"error": sentence}, status)


def _refused(_: Request, error: Exception) -> JSONResponse:
    return refusal(422, str(error))


def _plain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PlainHTTPException)
    if error.status_code == 400:
        return refusal(400, "Expected JSON in UTF-8, got bytes that are none.")
    spoken = isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    sentence = f"Expected a request that this service knows, got {where} ({error.detail}): see /openapi.json."
    return refusal(error.status_code, str(error.detail) if spoken else sentence)


def _malformed(_: Request, error: Exception) -> JSONResponse:
    """The first of what does not fit, and where it stands."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return refusal(422, f"Expected JSON, got something else ({first['ctx']['error']}).")
    place = [str(part) for part in first["loc"][1:] if part not in KINDS_OF_CELLS]
    reason = str(first["msg"])[:1].lower() + str(first["msg"])[1:]
    return refusal(422, f"Expected another value for {'.'.join(place) or 'the body'}: {reason}. See /openapi.json.")


KINDS_OF_CELLS = ("bool", "int", "float", "str", "constrained-int")  # what a cell may be, as errors of pydantic call it
