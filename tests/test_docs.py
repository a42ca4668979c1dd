"""The site says nothing that is not so: its code runs, its commands exist, its links lead somewhere, and it builds."""

import doctest
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import kinfolk
from kinfolk.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]  # their code is run by doctest itself
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SPOKEN = re.compile(r"`(kinfolk [a-z][^`]*)`")


def named(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page, *languages):
    """The text of the fenced blocks in some language, with the line that each starts at."""
    text = page.read_text()
    found = [(text[: match.start()].count("\n") + 1, match[1], match[2]) for match in BLOCK.finditer(text)]
    return [(line, code) for line, language, code in found if language in languages]


# ---------------------------------------------------------------------- Python


@named([page for page in PAGES if blocks(page, "python")])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for line, code in blocks(page, "python"):
        if ">>>" in code:
            example = doctest.DocTestParser().get_doctest(code, space, str(page), str(page), line)
            said = []
            runner.run(example, out=said.append, clear_globs=False)
            assert not said, "".join(said)
            space = example.globs
        else:
            exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), space)


# ---------------------------------------------------------------------- the shell


def shell_lines(page):
    """Commands of the blocks for a shell, continued lines joined, without comments."""
    for _, code in blocks(page, "sh"):
        joined = re.sub(r"\\\n\s*", " ", code)
        yield from filter(None, (line.split("  #")[0].strip() for line in joined.splitlines()))


@named([page for page in [*PAGES, *FRONT] if blocks(page, "sh")])
def test_shell_commands_exist(page):
    for line in shell_lines(page):
        CHECKS[line.split()[0]](shlex.split(line)[1:])


@named([page for page in [*PAGES, *FRONT] if SPOKEN.search(page.read_text())])
def test_commands_in_the_text_exist(page):
    for line in SPOKEN.findall(page.read_text()):
        words = shlex.split(line)[1:]
        known, _ = command(words)
        options = {option for parameter in known.params for option in [*parameter.opts, *parameter.secondary_opts]}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, line


def command(words):
    """The command that words name, of a group if need be, and the words after it."""
    known, rest = get_command(app), list(words)
    while hasattr(known, "commands") and rest:
        assert rest[0] in known.commands, f"no command kinfolk {' '.join(words)}"
        known = known.commands[rest.pop(0)]
    return known, rest


def check_kinfolk(words):
    """Parse as the program would, without doing anything."""
    known, rest = command(words)
    known.make_context(known.name, rest)


def check_make(words):
    made = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(made)


def check_pip(words):
    assert words[0] == "install"
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words[1:]:
        extras = re.findall(r"\[(.*)\]", word)
        assert re.match(r"(kinfolk|\.)(\[|$)", word)
        assert set(",".join(extras).split(",")) <= {*known, ""}


def check_python(words):
    assert (ROOT / words[0]).is_file()


CHECKS = {"kinfolk": check_kinfolk, "make": check_make, "pip": check_pip, "python": check_python}


def test_a_wrong_command_is_found():
    with pytest.raises(Exception, match="--nod"):
        check_kinfolk(["fit", "table.csv", "--nod", "shop"])
    with pytest.raises(AssertionError, match="no command"):
        check_kinfolk(["fitt"])
    with pytest.raises(AssertionError):
        check_pip(["install", "kinfolk[troch]"])


# ---------------------------------------------------------------------- links


@named([*PAGES, *FRONT])
def test_links_lead_somewhere(page):
    text = BLOCK.sub("", page.read_text())
    for link in LINK.findall(text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in headings(target), f"{link}: no such heading"


def headings(page):
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert re.search(rf"[ :]{re.escape(str(page.relative_to(DOCS)))}$", menu, re.MULTILINE), page


def test_real_data_go_between_the_marks():
    spec = importlib.util.spec_from_file_location("real_data", ROOT / "examples" / "real_data.py")
    real_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real_data)
    page = real_data.PAGE.read_text()
    assert page.count(real_data.BEGIN) == page.count(real_data.END) == 1
    once = real_data.inserted(page, real_data.table([["schools", *["1"] * 8]]))
    assert "| schools | 1 |" in once
    assert real_data.inserted(once, "x") == real_data.inserted(page, "x")
    assert page.split(real_data.END)[1] == once.split(real_data.END)[1]


# ---------------------------------------------------------------------- the whole site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    missing = [name for name in ("mkdocs", "mkdocstrings", "latex2mathml") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the site needs {', '.join(missing)}: pip install 'kinfolk[docs]'")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_complete(site):
    for page in PAGES:
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file()
    assert not (site / "tools").exists()
    reference = (site / "reference" / "algorithms.html").read_text()
    assert "Zero leaves every node alone" in reference
    assert "<blockquote>" not in reference  # examples are code
    assert "<math" in (site / "concepts.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")
    for page in site.rglob("*.html"):
        assert not fetched.findall(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//|@import", style.read_text()), style


# ---------------------------------------------------------------------- names


def public_classes():
    """The classes of the package, and the modules that define them."""
    found = {}
    for file in (ROOT / "src" / "kinfolk").rglob("*.py"):
        for name in re.findall(r"^class ([A-Z]\w+)", file.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(".".join(file.relative_to(ROOT / "src").with_suffix("").parts))
    return found


def module(name):
    """A module or an object of the package, by its full name; None if there is none."""
    place = kinfolk
    for part in name.split(".")[1:]:
        place = getattr(place, part, None)
        if place is None:
            try:
                place = importlib.import_module(name)
            except ImportError:
                return None
    return place


@named([*PAGES, ROOT / "README.md"])
def test_names_can_be_imported_as_the_page_has_them(page):
    """A class in `code` is a public name, is written with its module, or its module is named on the page."""
    text, classes = page.read_text(), public_classes()
    homes = set(re.findall(r"kinfolk(?:\.[a-z_]+)+", text))
    for code in re.findall(r"`([\w.]+)(?:\([^`]*)?`", BLOCK.sub("", text)):
        *modules, name = code.split(".")
        if name in classes and not modules:
            written = re.search(rf"\b\w+\.{name}\b", text) or any(hasattr(module(home), name) for home in homes)
            assert name in kinfolk.__all__ or written, f"{name}: write {classes[name][0]}.{name}"
        elif name in classes and modules[0] in ("kinfolk", *kinfolk.__all__):
            assert hasattr(module(".".join(["kinfolk", *modules]).replace("kinfolk.kinfolk", "kinfolk")), name), code


def test_the_list_of_public_names_is_short_and_known_to_type_checkers():
    stub = (ROOT / "src" / "kinfolk" / "__init__.pyi").read_text()
    assert set(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == set(kinfolk.__all__)
    assert len(kinfolk.__all__) <= 50
