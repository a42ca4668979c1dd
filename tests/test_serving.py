"""kinfolk serve: the real process, asked by real clients."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pandas
import pytest

from kinfolk import learn
from kinfolk.tables import load
from test_cli import invoke
from test_table import shops

pytestmark = pytest.mark.usefixtures("few_trees")

LEARN = {"node": "shop", "target": "sales", "features": ["price", "district"], "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return learn(shops(12), **LEARN).save(tmp_path_factory.mktemp("served") / "run")


@contextmanager
def serving(folder, *options):
    """The process, and the port that it says it listens on."""
    words = [sys.executable, "-m", "kinfolk", "serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = process.stdout.readline()
            assert "Serving" in first, first + process.stderr.read()
            yield process, int(re.search(r":(\d+) \(", first)[1])
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="module")
def port(folder):
    with serving(folder) as (_, found):
        yield found


def ask(port, method, path, body=None, **headers):
    """The status and the JSON of one request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        return spoken(connection, method, path, body, **headers)


def spoken(connection, method, path, body=None, **headers):
    text = json.dumps(body) if isinstance(body, dict | list) else body
    connection.request(method, path, text, {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def rows_of(table):
    return json.loads(table[["shop", "price", "district"]].to_json(orient="records", double_precision=15))


def question(**changes):
    return {"rows": [{"shop": "shop 1", "price": 0.5, "district": "north"}], **changes}


# ---------------------------------------------------------------------- answers


def test_answers_are_those_of_the_run(port, folder):
    table = shops(3, seed=5)
    status, found = ask(port, "POST", "/predict", {"rows": rows_of(table), "interval": 0.9})
    expected = load(folder).predict(table, interval=0.9)
    assert status == 200
    assert found["target"] == "sales"
    answers = pandas.DataFrame(found["predictions"])
    assert answers["node"].tolist() == table["shop"].tolist()
    np.testing.assert_allclose(answers[["predicted", "low", "high"]], expected, rtol=1e-12)


def test_a_thousand_requests_over_several_connections_are_all_answered(port, folder):
    table = shops(125, seed=6)
    expected, rows = load(folder).predict(table, interval=0.8), rows_of(table)

    def talk(mine):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            return [spoken(connection, "POST", "/predict", {"rows": [rows[k]], "interval": 0.8}) for k in mine]

    with ThreadPoolExecutor(8) as pool:
        found = [each for part in pool.map(talk, np.array_split(np.arange(1000), 8)) for each in part]
    assert [status for status, _ in found] == [200] * 1000
    answers = pandas.DataFrame([each["predictions"][0] for _, each in found])
    np.testing.assert_allclose(answers[["predicted", "low", "high"]], expected, rtol=1e-9)
    assert answers["node"].tolist() == table["shop"].tolist()


def test_classes_come_with_probabilities(tmp_path):
    table = shops(12)
    table["sales"] = np.where(table["sales"] > 11, "many", "few")
    run = learn(table, **LEARN)
    with serving(run.save(tmp_path / "run")) as (_, port):
        status, found = ask(port, "POST", "/predict", {"rows": rows_of(table[:5])})
    assert status == 200
    assert [each["predicted"] for each in found["predictions"]] == run.predict(table[:5]).tolist()
    chances = pandas.DataFrame([each["probabilities"] for each in found["predictions"]])
    np.testing.assert_allclose(chances, run.predict_proba(table[:5])[chances.columns], rtol=1e-9)


def test_health_nodes_and_the_description_for_programs(port, folder):
    run = load(folder)
    status, health = ask(port, "GET", "/health")
    assert (status, health["status"], health["nodes"]) == (200, "ok", 8)
    assert health["fingerprint"] == run.made.fingerprint
    nodes = pandas.DataFrame(ask(port, "GET", "/nodes")[1]).set_index("node")
    assert nodes["train_rows"].to_dict() == run.nodes["train_rows"].to_dict()
    assert ask(port, "GET", "/nodes/shop%203")[1]["node"] == "shop 3"
    paths = ask(port, "GET", "/openapi.json")[1]["paths"]
    assert set(paths) == {"/predict", "/health", "/nodes", "/nodes/{name}"}


def test_pages_fetch_nothing_from_elsewhere(port):
    for path in ("/", "/docs"):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", path)
            reply = connection.getresponse()
            text = reply.read().decode()
        assert reply.status == 200
        assert "shop" in text
        assert not re.search(r"""(src|href)\s*=\s*["'](https?:)?//""", text)


def test_the_page_answers_in_a_browser(port):
    pytest.importorskip("playwright")
    import shutil

    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, elsewhere, mistakes = browser.new_page(), [], []
        page.on("request", lambda each: elsewhere.append(each.url) if "127.0.0.1" not in each.url else None)
        page.on("pageerror", lambda each: mistakes.append(str(each)))
        page.goto(f"http://127.0.0.1:{port}/")
        page.click("#ask")
        page.locator("#answer", has_text="predicted").wait_for()
        assert '"low"' in page.text_content("#answer")
        browser.close()
    assert [url for url in elsewhere if not url.startswith("data:")] == mistakes == []


# ---------------------------------------------------------------------- refusals


ROW = {"shop": "shop 1", "price": 0.5, "district": "north"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("POST", "/predict", {"rows": [{**ROW, "shop": "nowhere"}]}, 422, "Expected nodes that were learnt, got 'nowh"),
        ("POST", "/predict", {"rows": [{**ROW, "price": "dear"}]}, 422, "Expected numbers in column 'price', got '"),
        ("POST", "/predict", {"rows": [ROW, {"shop": "shop 1", "price": 1}]}, 422, "row 1 has no 'district'"),
        ("POST", "/predict", {"rows": [{**ROW, "price": [1]}]}, 422, "Expected another value for rows.0.price"),
        ("POST", "/predict", {"rows": [{**ROW, "price": 10**400}]}, 422, "Expected another value for rows.0.price"),
        ("POST", "/predict", '{"rows": [{"shop": "shop 1", "price": Infinity, "district": "a"}]}', 422, "finite"),
        ("POST", "/predict", '{"rows": [{"shop": "shop 1", "price": 1e999, "district": "a"}]}', 422, "finite"),
        ("POST", "/predict", {"rows": [{**ROW, "price": -1.7e308}, {**ROW, "price": 1e308}]}, 422, "Expected"),
        ("POST", "/predict", {"rows": []}, 422, "Expected another value for rows"),
        ("POST", "/predict", {"rows": {}}, 422, "Expected another value for rows"),
        ("POST", "/predict", [], 422, "Expected another value for the body"),
        ("POST", "/predict", "", 422, "Expected another value for the body"),
        ("POST", "/predict", {"row": [ROW]}, 422, "Expected another value for row"),
        ("POST", "/predict", '{"rows": ', 422, "Expected JSON"),
        ("POST", "/predict", b"\xff\xfe\x00", 400, "Expected JSON"),
        ("POST", "/predict", "[" * 100_000, 400, "Expected JSON"),
        ("POST", "/predict", question(interval=1.5), 422, "Expected the level of an interval between 0 and 1"),
        ("POST", "/predict", question(role="nobody"), 422, "Expected one of final, pooled"),
        ("POST", "/predict", question(role="pooled", interval=0.9), 422, "Expected numbers predicted by the blend"),
        ("POST", "/predict", question(unknown="guess"), 422, "Expected another value for unknown"),
        ("GET", "/nodes/nowhere", None, 404, "Expected a node that was learnt, got 'nowhere'"),
        ("GET", "/nothing", None, 404, "Expected a request that this service knows, got GET /nothing"),
        ("GET", "/predict", None, 405, "Expected a request that this service knows, got GET /predict"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_gets_one_sentence(port, method, path, body, status, sentence):
    found, reply = ask(port, method, path, body)
    assert (found, list(reply)) == (status, ["error"]), reply
    assert sentence in reply["error"]
    assert "\n" not in reply["error"]
    assert ask(port, "POST", "/predict", question())[0] == 200  # and the service is still there


def test_unknown_nodes_may_be_predicted_by_the_model_of_all(port, folder):
    row = {**ROW, "shop": "new"}
    found = ask(port, "POST", "/predict", {"rows": [row], "unknown": "pooled", "interval": 0.5})[1]["predictions"][0]
    expected = load(folder).predict(pandas.DataFrame([row]), unknown="pooled", interval=0.5)
    np.testing.assert_allclose([found["predicted"], found["low"], found["high"]], expected.iloc[0])
    near = ask(port, "POST", "/predict", {"rows": [row], "edges": [["new", "shop 1"]]})[1]["predictions"][0]
    expected = load(folder).predict(pandas.DataFrame([row]), edges=[("new", "shop 1")])
    np.testing.assert_allclose(near["predicted"], expected)
    assert near["predicted"] != found["predicted"]


def test_a_request_that_is_too_large_is_refused_with_or_without_its_length(folder):
    many = {"rows": [ROW] * 1000}
    with serving(folder, "--limit", "0.01") as (_, port):
        assert ask(port, "POST", "/predict", many) == (413, {"error": TOO_LARGE})
        parts = (json.dumps(many).encode()[k : k + 1000] for k in range(0, 60_000, 1000))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/predict", parts, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
            assert connection.getresponse().status == 413
        assert ask(port, "POST", "/predict", question())[0] == 200


TOO_LARGE = "Expected a request of at most 10,000 bytes, got more: send fewer rows at once."


def test_a_page_of_another_name_for_this_machine_is_refused(port):
    assert ask(port, "GET", "/health", Host="evil.example")[0] == 400
    assert ask(port, "GET", "/health", Host=f"localhost:{port}")[0] == 200


def test_it_listens_here_alone_unless_told_otherwise(port):
    """The address of this machine in its network, where it has one, does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        assert other.connect_ex(("127.0.0.2", port)) != 0  # another address of the loopback: not all are listened on


def test_a_port_that_is_taken_is_one_sentence(port, folder):
    result = invoke("serve", folder, "--port", port)
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in result.output
    assert "Traceback" not in result.output


# ---------------------------------------------------------------------- stopping


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_asked_and_answers_what_is_under_way(folder, how):
    """Clients ask without a pause while the process is told to stop: every answer that begins is whole."""
    with serving(folder) as (process, port):
        answered, refused = [], []

        def talk():
            while True:
                try:
                    answered.append(ask(port, "POST", "/predict", question())[0])
                except (ConnectionError, http.client.RemoteDisconnected):
                    refused.append(time.perf_counter())
                    return

        clients = [threading.Thread(target=talk) for _ in range(4)]
        for each in clients:
            each.start()
        while len(answered) < 20:
            time.sleep(0.01)
        os.kill(process.pid, how)
        for each in clients:
            each.join(60)
        assert process.wait(30) == 0
        assert process.stdout.read().strip().endswith("Stopped.")
        assert "Traceback" not in process.stderr.read()
    assert set(answered) == {200}
    assert len(refused) == 4
