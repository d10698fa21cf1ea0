# Two commands matter: `make reproduce` measures and draws, `make test` checks. `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
PY := .venv/bin/python
NOTEBOOKS = $(sort $(wildcard notebooks/*.ipynb))
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/speculation-notebooks

# Only asked for torch's CPU build, and only if pip does not find it where it already looks.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
export PYTHON TORCH_INDEX
export WHEELS := $(CACHE)/wheels

NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=60
ROOT_OK := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help env reproduce replay test contract nbval bench lab html lint clean-runs gpu-env ray-env conda-env

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

env: .venv/stamp ## set up .venv with the CPU engine (minutes the first time)

.venv/stamp: requirements/cpu.txt requirements/install.sh pyproject.toml
	@requirements/install.sh cpu .venv
	@$(call diff_drivers)
	@touch $@

reproduce: ## set up, measure real engines with params/cpu.yaml, draw the figures (what is stored is not measured again)
	@start=$$(date +%s); $(MAKE) env; mid=$$(date +%s); \
	status=0; $(PY) -m lib reproduce params/cpu.yaml || status=$$?; end=$$(date +%s); \
	printf 'set-up %d s, main job %d s\n' $$((mid - start)) $$((end - mid)); exit $$status

PROFILE ?= cpu
replay: env ## all notebooks from the committed records of PROFILE (default cpu), no engine; into runs/<profile>/replay
	@$(PY) -m lib reproduce $(PROFILE) --mode replay

test: env ## unit, property and engine tests, then the notebooks against their saved outputs
	@$(PY) -m pytest -q -n 2 -m "not engine"
	@$(PY) -m pytest -q -m engine
	@$(MAKE) nbval

contract: env ## parrots on the real CPU engine: every family, setting and precision (the better part of an hour)
	@SPECULATION_CONTRACT=all $(PY) -m pytest -q tests/test_parrot_engine.py

nbval: env ## replay every notebook and compare its outputs with the saved ones
	@drawn() { cat figures/*.svg figures/*.png | sha256sum; }; before=$$(drawn); \
	$(PY) -m pytest -q -n 2 --dist loadfile $(NBVAL) $(NOTEBOOKS); \
	[ "$$before" = "$$(drawn)" ] || { echo "nbval: figures redrawn from the records differ from the stored ones" >&2; exit 1; }

bench: env ## time the library itself: replay, drafters, the store under random kills; prints ratios
	@for bench in tests/bench/bench_*.py; do echo "$$bench"; $(PY) "$$bench"; done

lab: env ## open the notebooks in JupyterLab (this machine only, with a token)
	@$(PY) -m jupyterlab --ip=127.0.0.1 --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/00_start.ipynb $(ROOT_OK) $(LABFLAGS)

html: env ## every notebook as a page, with an index, in runs/html
	@mkdir -p runs/html
	@$(PY) -m nbconvert --to html --embed-images --log-level=WARN --output-dir runs/html \
	  --HTMLExporter.mathjax_url= --HTMLExporter.require_js_url= $(NOTEBOOKS)
	@perl -pi -e 's/(href="\d\d_\w+)\.ipynb/$$1.html/g; s/href="\.\.\//href="..\/..\//g' runs/html/*.html
	@{ echo '<!doctype html><meta charset="utf-8"><title>When does speculation pay?</title>'; \
	   echo '<style>body{font:16px/1.6 sans-serif;max-width:44em;margin:3em auto}</style>'; \
	   echo '<h1>When does speculation pay?</h1><ul>'; \
	   for n in $(NOTEBOOKS); do name=$$(basename $$n .ipynb); \
	     title=$$($(PY) -c 'import nbformat, sys; nb = nbformat.read(sys.argv[1], 4); print(next((line.lstrip("# ") for c in nb.cells if c.cell_type == "markdown" for line in c.source.splitlines() if line.startswith("# ")), sys.argv[2]))' $$n $$name); \
	     echo "<li><a href=\"$$name.html\">$$title</a></li>"; done; echo '</ul>'; } > runs/html/index.html
	@echo "runs/html/index.html"

lint: env ## ruff: rules and format, notebooks included
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

clean-runs: ## remove what runs left behind (committed records stay)
	@rm -rf runs

gpu-env: .venv-gpu/stamp ## on a GPU machine: set up .venv-gpu with vLLM for CUDA

.venv-gpu/stamp: requirements/cuda.txt requirements/install.sh pyproject.toml
	@requirements/install.sh cuda .venv-gpu
	@touch $@

ray-env: env ## add Ray to .venv, for sweeps over many GPUs or hosts
	@$(PY) -m pip install --no-deps -r requirements/ray.txt

conda-env: ## the same CPU environment through conda (environment.yml says what each step is for)
	@command -v conda >/dev/null || { echo "conda-env: conda is not on the path" >&2; exit 1; }
	@PIP_NO_DEPS=1 PIP_EXTRA_INDEX_URL=$(TORCH_INDEX) conda env create -f environment.yml
	@conda run --live-stream -n speculation-notebooks python -m pip install --no-deps --no-build-isolation $$(grep '^arctic-inference==' requirements/cpu.txt)
	@conda run --live-stream -n speculation-notebooks python -m pip install --no-deps --no-build-isolation -e .

# Notebook diffs by cell (nbdime), in this clone only. Without .venv, git falls back to its plain ones.
diff_drivers = if git rev-parse --git-dir >/dev/null 2>&1; then \
	git config diff.jupyternotebook.command 'f() { d=.venv/bin/git-nbdiffdriver; if [ -x $$d ]; then $$d diff "$$@"; else diff -u "$$2" "$$5"; fi || true; }; f'; \
	git config merge.jupyternotebook.driver 'd=.venv/bin/git-nbmergedriver; if [ -x $$d ]; then $$d merge %O %A %B %L %P; else git merge-file %A %O %B; fi'; \
	git config merge.jupyternotebook.name 'notebooks, by cell'; fi || true
