# make demo: the main job.  make test: lint, types, and the whole test suite.  make bench: speed, against rivals.
# Each does all the set-up.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test bench browser clean

demo: .venv/.demo
	$(BIN)/kinfolk demo

test: .venv/.dev browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

bench: .venv/.dev
	$(BIN)/python benchmarks/gtvmin.py
	$(BIN)/python benchmarks/fedrelax.py

# The page is tested in a real browser. Where there is none and it cannot be installed, those tests are skipped.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
		&& apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium > /dev/null; } \
		|| echo "No chromium, and it cannot be installed here: the tests of the page in a browser will be skipped."

.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable "."
	touch $@

.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@ .venv/.demo

$(BIN)/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache .hypothesis
