# make demo   the main job
# make lint   the quick loop: ruff and mypy
# make test   make lint, then the whole test suite; it ends with what was skipped, and why
# make bench  speed, against rivals
# make stress sites killed, stopped and lying, on Ray and over Flower, twice in a row; minutes
# make fuzz   100,000 broken messages to a site and a coordinator
# make docs   the site, in site/
# make clean  remove what the others made
# Each does all the set-up.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo lint test bench stress fuzz docs browser clean

demo: .venv/.demo
	$(BIN)/kinfolk demo

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2  # a process for every core, and a thread for every process

bench: .venv/.dev
	$(BIN)/python benchmarks/gtvmin.py
	$(BIN)/python benchmarks/instances.py
	$(BIN)/python benchmarks/attack.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/updates.py
	$(BIN)/python benchmarks/fedrelax.py
	$(BIN)/python benchmarks/local_work.py
	$(BIN)/python benchmarks/bigfl.py
	$(BIN)/python benchmarks/fedcg.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/flower.py

stress: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/stress.py

fuzz: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py 100000

docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html; $(BIN)/mkdocs serve shows it with search."

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
	rm -rf .venv out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
