# Needs Python 3.11+, make and the package index; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
NAME ?= speed

.PHONY: help setup dev demo test pages test-full test-faults federation lint floor bench reproduce leaderboard docs dist smoke clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.setup  ## make .venv with profl and what its pictures need, in the tested versions

dev: $(VENV)/.dev  ## add what tests, lint and benchmarks need: Flower, playwright, tools (1.5 GB)

$(VENV)/.setup: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[report]'
	touch $@

$(VENV)/.dev: $(VENV)/.setup
	$(INSTALL) -e '.[dev,dp,flower]'
	touch $@

$(VENV)/.docs: $(VENV)/.setup
	$(INSTALL) -e '.[docs]'
	touch $@

demo: setup  ## retraining, the performative gradient and ProFL, clean and in trouble; writes out/demo.png
	$(BIN)/profl demo --out out/demo.png

pages: dev  ## run every example of the documentation and of examples/ in its short form
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'pages and not slow'

test: dev  ## run the tests, slow ones in their short form (about six minutes on two cores)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-full: dev  ## run the tests, the slow ones in full
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m ''

test-faults: dev  ## things go wrong on purpose: 1,440 schedules of faults, damaged files, random command lines (many minutes)
	$(BIN)/pytest -n $(WORKERS) --dist load -m faults

federation: dev  ## Flower with TLS and client keys on this machine, equal to simulate (some minutes)
	$(BIN)/python -m tests.federation

lint: dev  ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

floor: dev  ## fail where speed, program size or memory is worse than benchmarks/floors.toml; UPDATE=1 writes it, HISTORY=1 keeps a line
	$(BIN)/python -m benchmarks.floor $(if $(UPDATE),--update) $(if $(HISTORY),--history)

bench: dev  ## make bench NAME=robust: one benchmark; speed by default, which adds a line to benchmarks/history.jsonl
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	  $(BIN)/python -m benchmarks $(NAME) $(if $(filter speed scale memory,$(NAME)),--history)

reproduce: setup  ## the paper's tables and figures, ten seeds; writes out/paper/report.html
	$(BIN)/profl reproduce all --out out/paper

leaderboard: setup  ## every method on problems drawn now, equal budgets; writes out/leaderboard/leaderboard.html
	$(BIN)/profl leaderboard --out out/leaderboard

docs: $(VENV)/.docs  ## build the documentation into out/site (warnings are errors), follow its links, look at its pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tests/check_site.py out/site

dist: setup  ## build the wheel and the sdist into dist
	$(INSTALL) build
	rm -rf dist
	$(BIN)/python -m build --outdir dist . >/dev/null

smoke: dist  ## try the wheel in a clean environment, without extras
	PYTHON=$(PYTHON) tests/smoke_wheel.sh dist

clean:  ## remove .venv and everything made
	rm -rf $(VENV) out docs/figures docs/report.html dist build .pytest_cache .mypy_cache .ruff_cache
