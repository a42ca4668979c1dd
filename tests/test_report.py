"""The page in a real browser, and the figures."""

import dataclasses
import json
import shutil

import numpy as np
import pandas
import pytest

from kinfolk.datasets import load_us_counties
from kinfolk.report import words
from kinfolk.report.facts import LamPath
from kinfolk.report.groups import group_table, steady_groups
from kinfolk.report.page import page_html, summary_html
from kinfolk.report.positions import laid_out, on_map
from kinfolk.tables.learning import learn

pytestmark = pytest.mark.usefixtures("few_trees")

HOSTILE = ["<script>hurt()</script>", "</script><b>x", "a & b <img src=x onerror=hurt()>", "quote \" and ' here"]
SPOT = """k => {
  const map = document.getElementById("map"), shown = map._fullLayout;
  map.scrollIntoView({behavior: "instant", block: "center"});
  const box = map.getBoundingClientRect();
  const place = (axis, value) => axis._offset + axis.l2p(value);
  return [box.x + place(shown.xaxis, data.x[k]), box.y + place(shown.yaxis, data.y[k])];
}"""  # where a node is on the screen


def shops(names, seed=0, **columns):
    """Two kinds of shops: the first half sells more at a high price, the second less."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(12, 60, size=len(names))
    owner = np.repeat(np.arange(len(names)), sizes)
    price, wind = rng.normal(size=(2, len(owner)))
    slope = np.where(np.arange(len(names)) < len(names) / 2, 1.0, -1.0) + 0.2 * rng.normal(size=len(names))
    frame = {"shop": np.array(names, dtype=object)[owner], "price": price, "wind": wind}
    frame |= {name: np.asarray(values)[owner] for name, values in columns.items()}
    return pandas.DataFrame(frame).assign(sales=slope[owner] * price + rng.normal(size=len(owner)))


def places(count, seed=1):
    rng = np.random.default_rng(seed)
    return {"lat": np.linspace(60, 68, count), "lon": 20 + 8 * rng.random(count)}


@pytest.fixture(scope="module")
def run():
    names = [f"shop {k}" for k in range(40)]
    return learn(shops(names, **places(40)), node="shop", target="sales", progress=False)


@pytest.fixture(scope="module")
def page_file(run, tmp_path_factory):
    return run.report(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def hostile():
    names = [*HOSTILE, *(f"shop {k}" for k in range(4))]
    table = shops(names).rename(columns={"price": "<i>price</i>", "shop": "<u>shop</u>", "sales": "</title>sales"})
    return learn(table, node="<u>shop</u>", target="</title>sales", progress=False)


@pytest.fixture(scope="module")
def counties():
    known = load_us_counties()
    return learn(
        known.frame, node="county", target="log_turnout", edges=known.graph.to_frame(), lam=1.0, method="gtvmin-smooth",
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("the page is tested in Chromium, and there is none")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens a file; afterwards nothing was asked of the world outside, and no error was logged."""
    contexts, asked, errors = [], [], []

    def opened(file, **options):
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def first_column(page):
    return page.locator("#table tbody tr td:first-child").all_text_contents()


def node_colours(page):
    return page.evaluate("Array.from(document.getElementById('map').data[BINS].marker.color).join()")


# ---------------------------------------------------------------------- in the browser


def test_it_opens_and_shows_every_part(visit, page_file, run):
    page = visit(page_file)
    assert page.title() == "sales for each shop · kinfolk"
    headings = page.locator("h2").all_text_contents()
    assert headings == [
        "The blend", "The network", "Convergence", "Node by node", "Groups of kin", "What was exchanged",
        "How to repeat it",
    ]  # fmt: skip
    for name in ("path", "convergence", "gain", "exchange"):
        assert page.locator(f"#figure-{name} .plot-container").count() == 1
    assert page.evaluate("document.getElementById('map').data[BINS].x.length") == len(run.nodes)
    lines = page.evaluate(
        "document.getElementById('map').data.slice(0, BINS).reduce((n, each) => n + each.x.length, 0)"
    )
    assert lines == 3 * run.graph.edge_count
    assert run.made.fingerprint in page.locator("#repeat").inner_text()


def test_the_members_add_up_to_the_blend(visit, page_file, run):
    page = visit(page_file)
    weights = run.weights[run.weights > 0]
    shown = [text.strip() for text in page.locator("#blend .bars b").all_text_contents()]
    assert sorted(shown) == sorted(words.share_of_one(weight) for weight in run.weights)
    assert page.locator("#row option").count() == min(len(run.predictions), 100)
    step = max(len(run.predictions) // 100, 1)
    for k in (0, 5):
        page.select_option("#row", str(k))
        lines = [line.split("\t") for line in page.locator("#parts tbody tr").all_inner_texts()]
        assert len(lines) == len(weights) + 1
        row = run.predictions.iloc[k * step]
        for line, name in zip(lines, weights.index, strict=False):
            assert line[0].strip() == words.title(name)
            assert plain(line[1]) == pytest.approx(row[name], rel=1e-3, abs=1e-3)
        assert plain(lines[-1][1]) == pytest.approx(row["final"], rel=1e-3, abs=1e-3)
        assert plain(lines[-1][3].removeprefix("truth ")) == pytest.approx(row["target"], rel=1e-3, abs=1e-3)


def plain(text):
    return float(text.strip().replace("−", "-").replace(",", ""))


@pytest.mark.parametrize("model", ["ridge", "tree"])
@pytest.mark.parametrize("count", [0, 2, 3])
def test_the_page_of_every_kind_of_target_and_model(visit, tmp_path, count, model):
    """Classes have probabilities; other models have no coefficients; members add up; all open without an error."""
    table = shops(list("abcdef"), **places(6))
    if count:
        cut = pandas.qcut(table["sales"], count, labels=False).to_numpy()
        table["sales"] = np.array(["little", "some", "much"])[cut]
    made = learn(table, node="shop", target="sales", model=model, lam=0.3, folds=2, progress=False)
    page = visit(made.report(tmp_path / "page.html"))
    assert ("Probabilities" in page.locator("h2").all_text_contents()) == bool(count)
    parts = [line.split("\t") for line in page.locator("#parts tbody tr").all_inner_texts()]
    first = made.predictions.iloc[0]
    column = f"probability of {first['final']}"
    assert page.locator("#parts th:nth-child(2)").first.inner_text() == (column if count else "predicts")
    assert plain(parts[-1][1]) == pytest.approx(first[column if count else "final"], rel=1e-3, abs=1e-3)
    assert sum(plain(line[3]) for line in parts[:-1]) == pytest.approx(plain(parts[-1][1]), abs=2e-3)
    assert parts[-1][3] == f"truth {first['target']}" or not count
    assert page.locator("#figure-calibration .plot-container").count() == (1 if count else 0)
    assert page.locator("#blend .bars > div").count() == len(made.weights)
    if count:
        shown = page.locator("#classes tbody tr").all_inner_texts()
        counted = made.predictions["target"].value_counts()
        assert {line.split("\t")[0]: int(line.split("\t")[1]) for line in shown} == counted.to_dict()


def test_the_slider_shows_groups_forming(visit, page_file, run):
    page = visit(page_file)
    assert "(chosen)" in page.inner_text("#lam-words")
    counts = [len(np.unique(each)) for each in run.path.groups]
    chosen, last = run.path.chosen, len(counts) - 1
    moved = int(np.argmin(counts)) if counts[chosen] != min(counts) else int(np.argmax(counts))
    before = node_colours(page)
    page.locator("#lam").fill(str(moved))
    page.wait_for_function(
        "k => document.getElementById('lam-words').textContent.includes(format(data.path.lams[k]))", arg=moved
    )
    assert node_colours(page) != before
    assert f" {counts[moved]} group" in page.inner_text("#lam-words")
    page.select_option("#colour", "number 0")
    smooth = node_colours(page)
    page.locator("#lam").fill(str(0 if moved == last else last))
    page.wait_for_function(
        "before => Array.from(document.getElementById('map').data[BINS].marker.color).join() !== before", arg=smooth
    )


def test_the_keyboard_moves_the_slider(visit, page_file, run):
    page = visit(page_file)
    page.locator("#lam").focus()
    page.keyboard.press("Home")
    page.wait_for_function("view.lam === 0")
    page.wait_for_function(  # the figure follows when the browser has time for it
        "lam => Math.abs(document.getElementById('figure-path').layout.shapes[0].x0 / lam - 1) < 1e-3",
        arg=float(run.path.lams[0]),
    )


def test_nodes_are_coloured_by_what_is_chosen(visit, page_file):
    page = visit(page_file)
    seen = {node_colours(page)}
    for field in page.evaluate("Object.keys(FIELDS).slice(1)"):
        page.select_option("#colour", field)
        assert page.inner_text("#legend")
        seen.add(node_colours(page))
    assert len(seen) == page.evaluate("Object.keys(FIELDS).length")


def test_edges_show_weights_or_flow_or_nothing(visit, page_file):
    page = visit(page_file)
    drawn = "document.getElementById('map').data.slice(0, BINS).map(each => each.x.length).join()"
    weight = page.evaluate(drawn)
    page.select_option("#strokes", "flow")
    assert page.evaluate(drawn) != weight
    page.select_option("#strokes", "none")
    assert page.evaluate(drawn) == "0,0,0,0,0"


def test_hover_shows_the_right_node(visit, page_file, run):
    page = visit(page_file)
    for k in (3, 17, 39):
        x, y = page.evaluate(SPOT, k)
        page.mouse.move(x - 2, y)
        page.mouse.move(x, y)
        page.wait_for_selector(f"#card[data-node='shop {run.nodes.index[k].split()[1]}']")
        shown = page.inner_text("#card")
        assert f"{run.nodes['train_rows'].iloc[k]}" in shown
        assert words.number(run.nodes["error_tailored"].iloc[k]) in shown
        assert f"{run.graph.degrees[k]} neighbour" in shown
        assert page.locator("#over line").count() == run.graph.degrees[k]


def test_sorting_sorts(visit, page_file, run):
    page = visit(page_file)
    gain = run.nodes["gain"].sort_values(ascending=False)
    assert first_column(page) == list(gain.index[:20])
    page.click("#table th button >> text=training rows")
    rows = [int(text) for text in page.locator("#table tbody tr td:nth-child(9)").all_text_contents()]
    assert rows == sorted(run.nodes["train_rows"], reverse=True)[:20]
    page.click("#table th button >> text=shop")
    assert first_column(page) == [f"shop {k}" for k in range(20)]
    assert page.get_attribute("#table th:first-child", "aria-sort") == "ascending"
    page.click("#table th button >> text=shop")
    assert first_column(page)[0] == "shop 39"


def test_search_filters_and_pages_turn(visit, page_file):
    page = visit(page_file)
    assert page.inner_text("#page") == "page 1 of 2"
    page.click("#next")
    assert page.inner_text("#page") == "page 2 of 2"
    page.fill("#search", "SHOP 3")
    assert sorted(first_column(page)) == sorted(["shop 3", *(f"shop 3{k}" for k in range(10))])
    assert page.inner_text("#count") == "11 of 40 nodes"
    page.fill("#search", "nobody")
    assert first_column(page) == []


def test_a_name_leads_to_the_map(visit, page_file):
    page = visit(page_file)
    page.fill("#find", "shop 7")
    assert page.get_attribute("#card", "data-node") == "shop 7"
    page.locator("#table tbody a").first.click()
    assert page.get_attribute("#card", "data-node") == first_column(page)[0]


def test_dark_and_light(visit, page_file):
    page = visit(page_file, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.getElementById('figure-gain').layout.font.color"
    dark = page.evaluate(ground), page.evaluate(ink)
    page.click("#theme")
    light = page.evaluate(ground), page.evaluate(ink)
    assert dark[0] == "rgb(20, 23, 27)"
    assert light[0] == "rgb(251, 250, 248)"
    assert dark[1] != light[1]


def test_a_phone_shows_all_that_members_contribute_and_no_legend_over_curves(visit, page_file):
    page = visit(page_file, viewport={"width": 390, "height": 740})
    assert page.evaluate("(t => t.scrollWidth - t.parentElement.clientWidth)(document.getElementById('parts'))") <= 0
    top, below_legend = page.evaluate(
        """(figure => [figure._fullLayout._size.t,
            figure.querySelector(".legend").getBoundingClientRect().bottom - figure.getBoundingClientRect().top])
            (document.getElementById("figure-convergence"))"""
    )
    assert below_legend <= top


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(visit, page_file, scheme):
    page = visit(page_file, viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#map").bounding_box()["width"] > 300


def test_it_can_be_printed(visit, page_file):
    page = visit(page_file, color_scheme="dark")
    assert len(page.pdf(format="A4", print_background=True)) > 20_000
    page.set_viewport_size({"width": 700, "height": 990})
    page.emulate_media(media="print")
    page.evaluate("onPaper(true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.inner_text("#parts caption").startswith("Held-out row ")  # there is no menu on paper
    assert page.inner_text(".pages") == "page 1 of 2"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("onPaper(false)")
    page.emulate_media(media="screen", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"


def test_hostile_names_are_only_text(visit, hostile, tmp_path):
    page = visit(hostile.report(tmp_path / "page.html"))
    assert page.title() == "</title>sales for each <u>shop</u> · kinfolk"
    assert page.evaluate("data.names") == [str(name) for name in hostile.nodes.index]
    page.fill("#search", "script")
    assert sorted(first_column(page)) == sorted(name for name in HOSTILE if "script" in name)
    for name in HOSTILE:
        page.fill("#find", name)
        assert page.inner_text("#card h3") == " ".join(name.split())
    assert page.locator("main img, main u, main i, #table b").count() == 0
    assert "<script>hurt()" in page.inner_text("#map")  # few nodes: their names are written beside them


def test_three_thousand_nodes_stay_fluid_and_small(visit, counties, tmp_path):
    file = counties.report(tmp_path / "page.html")
    assert file.stat().st_size < 8e6
    page = visit(file)
    assert page.evaluate("document.getElementById('map').data[BINS].type") == "scattergl"
    assert page.evaluate("document.getElementById('map').data[BINS].x.length") == 3107
    assert page.locator("#lam").count() == 0  # λ was given
    assert page.locator("#table tbody tr").count() == 20
    spent = "action => { const began = performance.now(); eval(action); return performance.now() - began; }"
    assert page.evaluate(spent, "sortBy(3)") < 500
    assert page.evaluate(spent, "choose(100)") < 100
    page.evaluate("choose(null)")
    x, y = page.evaluate(SPOT, 1500)
    page.mouse.move(x - 2, y)
    page.mouse.move(x, y)
    page.wait_for_selector(f"#card[data-node='{counties.nodes.index[1500]}']")


# ---------------------------------------------------------------------- without a browser


def test_data_cannot_leave_their_script(hostile):
    text = page_html(hostile)
    for name in HOSTILE[:3]:
        assert name not in text
    start = text.index('id="data">') + len('id="data">')
    assert json.loads(text[start : text.index("</script>", start)])["names"] == [str(n) for n in hostile.nodes.index]


def test_a_notebook_shows_judgement_and_leaderboard(run, hostile):
    shown = summary_html(run)
    assert run.judgement.text.split(".")[0] in shown
    assert shown.count("<tr>") == 1 + len(run.leaderboard)
    assert "<u>" not in summary_html(hostile)


def test_a_classifier_of_trees_has_importances(tmp_path):
    table = shops(list("abcdef"))
    table["sales"] = np.where(table["sales"] > 0, "much", "little")
    run = learn(table, node="shop", target="sales", model="tree", lam=0.1, progress=False)
    found = group_table(run)
    assert found.kind == "feature importances"
    np.testing.assert_allclose(found.mean.sum(axis=1), 1.0)
    text = page_html(run)
    assert "Feature importances of the tailored models" in text
    assert "public points" in text
    assert "Brier score" in text


def test_groups_have_the_means_of_their_nodes(run):
    found = group_table(run)
    w = run.models.w
    for k, group in enumerate(found.groups):
        np.testing.assert_allclose(found.mean[k], w[(run.nodes["group"] == group).to_numpy()].mean(axis=0))
    assert found.features == ["price", "wind", "intercept"]
    assert found.sizes.sum() == len(run.nodes)


def test_groups_keep_their_numbers_along_the_path():
    groups = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    nothing = np.zeros(3)
    path = LamPath(np.arange(1.0, 4.0), 1, nothing, nothing, groups, np.zeros((3, 5, 1)), ("a",), True)
    assert steady_groups(path).tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]


def test_figures(run):
    network = run.plot.network()
    assert sum(len(trace.x) for trace in network.data[1:]) == len(run.nodes)
    assert [trace.name for trace in network.data[1:]] == [f"group {k}" for k in np.unique(run.nodes["group"])]
    assert len(network.data[0].x) == 3 * run.graph.edge_count
    path = run.plot.path()
    np.testing.assert_allclose(path.data[0].x, run.path.lams)
    assert path.data[1].x[0] == run.path.lams[run.path.chosen]
    names = [trace.name for trace in run.plot.convergence().data]
    assert names[:3] == ["objective", "duality gap", "residual"]
    gain = run.plot.gain().data[0]
    np.testing.assert_allclose(gain.y, run.nodes["gain"].clip(-100), rtol=1e-5)
    np.testing.assert_allclose(gain.x, run.nodes["train_rows"])


def test_nodes_of_one_size_are_counted(counties):
    assert words.same_size(counties) == 0
    figure = counties.plot.gain()
    assert figure.data[0].type == "histogram"
    assert len(figure.data[0].x) == counties.nodes["gain"].notna().sum()


def test_maps_and_layouts():
    across = on_map(np.array([[0.0, 179.0], [0.0, -179.0], [0.0, -178.0]]))  # the date line tears nothing apart
    np.testing.assert_allclose(np.diff(across[:, 0]), [2.0, 1.0])
    from kinfolk import graphs

    many = graphs.chain(1_200)
    spots = laid_out(many, 0)
    lengths = np.linalg.norm(spots[many.head] - spots[many.tail], axis=1)
    assert lengths.max() < 0.05 * np.ptp(spots)
    parts = laid_out(graphs.edgeless(7), 0)
    assert len(np.unique(parts, axis=0)) == 7


def test_the_command_repeats_the_run(run, counties, hostile):
    asked = run.settings.of({**run.settings.to_toml(), "rivals": True, "members": ["pooled", "given: Ridge"]})
    told = dataclasses.replace(run.facts, settings=asked)
    assert words.command(told).endswith("--members 'pooled,given: Ridge' --rivals --out RUN")
    assert "members=['pooled', Ridge(...)], rivals=True" in words.python_lines(told)
    assert words.command(run) == "kinfolk fit TABLE.csv --node shop --target sales --out RUN"
    assert words.command(counties).endswith("--edges EDGES.csv --out RUN")
    assert "--lam 1.0 --method" not in words.command(run)
    assert "'<u>shop</u>'" in words.command(hostile)
    assert "node='shop', target='sales'" in words.python_lines(run)


def test_the_page_says_what_leaves_a_node_as_the_algorithm_declares_it(run, tmp_path):
    sends = words.exchange(run)["sends"]
    assert sends.startswith("Each node sends to every neighbour: parameters (3 numbers). To the coordinator: ")
    table = shops([f"shop {k}" for k in range(6)])
    lonely = learn(table, node="shop", target="sales", method="ifca", progress=False)
    told = words.exchange(lonely)
    assert "Each node sends to every neighbour: nothing." in told["sends"]
    assert not [name for name, _ in told["figures"] if "between neighbours" in name]
    assert told["sees"] == ["Nothing: neighbours exchange no messages."]
    file = tmp_path / "secretive.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom kinfolk import GTVMin\n"
        "@dataclass(frozen=True)\nclass Secretive(GTVMin):\n    def sends(self, problem):\n        return None\n"
        "def make(loss):\n    return Secretive(loss)\n"
    )
    secret = learn(table, node="shop", target="sales", method=f"{file}:make", progress=False)
    told = words.exchange(secret)
    assert told["sends"].startswith("Secretive does not declare what it sends: it is unknown what leaves a node.")
    assert told["hidden"] == ["Unknown."]


# ---------------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("part", "name", "said"),
    [
        ("rival", "dummies", "smaller with a rival (regression with node dummies)."),
        ("control", "control", "smaller with the control (the blend, graphs and places at random)."),
        ("member", "slopes", "smaller with random intercepts and slopes."),
    ],
)
def test_what_is_ahead_of_the_blend_is_named(run, part, name, said):
    board = pandas.DataFrame({"part": ["final", part], "error": [1.0, 0.9]}, index=["final", name])
    assert (
        words.better_rival(dataclasses.replace(run.facts, leaderboard=board))
        == f"On these rows the error is 10 % {said}"
    )


def test_no_difference_is_not_called_a_small_one(run):
    even = dataclasses.replace(run.judgement, verdict="no clear difference", gain=-0.01)
    assert "learning together has the same error as" in words.judgement(even)
    assert "learning together has 0.1 % more error than" in words.judgement(dataclasses.replace(even, gain=-0.1))


@pytest.mark.parametrize(("count", "said"), [(1, "for this time only"), (3, "for these 3 times only")])
def test_few_times_are_counted_in_english(run, count, said):
    assert said in words.judgement(dataclasses.replace(run.judgement, few_times=count))
    blind = dataclasses.replace(
        run.judgement, verdict="no clear difference", low=None, high=None, visible=None, few_times=count
    )
    assert ("Only one time is held out" if count == 1 else "Only 3 different times are held out") in words.judgement(
        blind
    )


def test_notes_of_the_tailored_run_are_not_about_the_blend(run):
    """Without edges the tailored models learn alone; other members of the blend do not."""
    table = shops(list("abcd"))
    pair = pandas.DataFrame({"head": ["a"], "tail": ["b"]})
    notes = learn(table, node="shop", target="sales", edges=pair, lam=1.0, folds=2, progress=False).notes
    assert "Tailored models on the graph: The graph has 3 components: nothing is learnt across them." in notes


def test_a_rival_that_cannot_take_part_is_named():
    made = learn(
        shops(list("abcd")), node="shop", target="sales", task="quantile", members=["pooled"], folds=2, progress=False
    )
    assert "'regression with node dummies' takes no part: it does not predict quantiles." in made.notes


def test_the_caption_counts_rows_in_english(run):
    assert f" {len(run.predictions)} held-out rows." in words.caption(run.facts)
    one = run.nodes.assign(test_rows=[1, *(0 for _ in run.nodes.index[1:])])
    assert " 1 held-out row." in words.caption(dataclasses.replace(run.facts, nodes=one))


def test_new_nodes_have_no_error_alone_and_few_of_them_few_bars(visit, tmp_path):
    table = shops([f"shop {k}" for k in range(16)], **places(16))
    made = learn(table, node="shop", target="sales", hold="nodes", members=["pooled"], lam=1.0, folds=2, progress=False)
    tested = made.nodes["gain"].notna()
    assert made.plot.gain().data[0].nbinsx == np.ceil(2 * np.sqrt(tested.sum()))
    page = visit(made.report(tmp_path / "page.html"))
    page.fill("#find", made.nodes.index[tested][0])
    card = page.inner_text("#card dl").splitlines()
    assert card[card.index("error alone") + 1] == "–"
    assert page.locator("#card .best").count() > 0
