# What one does with a checkout. Needs Python 3.11 or newer and make; all else goes into .venv, once.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Our pip finds the lock complete: it must neither look for updates of itself nor ask anything.
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_NO_INPUT = 1
# pyright would ask the network for newer releases at each run; the lock decides which one it is.
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

# The tests start Python some hundred times: each would compile all the modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-cluster lua-coverage check chaos bench bench-scaling screenshots docs docs-release package lock format clean

demo: $(READY)
	@$(BIN)/evsched demo

# Each promise once.
test: $(READY)
	@$(BIN)/pytest -m "not extra and not long" $(ARGS)

test-all: $(READY)
	@$(BIN)/pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python grafana/build.py --check
	@if command -v luacheck >/dev/null; then echo "luacheck lua"; luacheck --quiet lua; \
	else echo "skipped: luacheck (not installed; Debian: lua-check)"; fi
	@PATH="$$PATH:node_modules/.bin"; \
	if command -v stylua >/dev/null; then echo "stylua --check lua"; stylua --check lua; \
	else echo "skipped: stylua (not installed; npm: @johnnymorganz/stylua-bin)"; fi

# `make test` walks the same paths each time; here they are new, and one seed walks them again: make chaos SEED=...
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

# The tests of loops and services, on a cluster of three primaries and three replicas for each process.
test-cluster: $(READY)
	@EVSCHED_TEST_CLUSTER=1 $(BIN)/pytest -n 3 -m "not one_server" tests/loops tests/service

# Which blocks of the Lua scripts their tests reach; fails if one is missed.
lua-coverage: $(READY)
	@$(BIN)/python -m tests.support.lua_coverage $(ARGS)

# One process for the faults: they are timed, and share the machine badly.
chaos: $(READY)
	@echo "exploring with SEED=$(SEED)"
	@EVSCHED_TEST_SEED=$(SEED) $(BIN)/pytest -m "hypothesis or seeded" --timeout 900 \
		--hypothesis-profile explore --hypothesis-seed $(SEED)
	@EVSCHED_TEST_SEED=$(SEED) $(BIN)/pytest -n 0 tests/chaos

# Takes hours. Less: make bench ARGS="--quick", or ARGS="throughput --only evsched,huey"
bench: $(READY)
	@$(BIN)/python -m bench $(ARGS)

# Measures what docs/scaling.md says, in about ten minutes, and writes it into that page.
bench-scaling: $(READY)
	@$(BIN)/python -m bench scaling --save scaling $(ARGS)
	@$(BIN)/python -m bench production --save production $(ARGS)

# Pictures of the console for the documentation, from a run of some minutes. Less: ARGS="--minutes 1 console-now"
screenshots: $(READY)
	@$(BIN)/python -m bench.screenshots $(ARGS)

# The documentation site, in site/. It needs no other host: any web server can serve the folder.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The same, of this release, as a commit on the branch gh-pages, beside the sites of earlier releases.
docs-release: $(READY)
	@release=$$($(BIN)/evsched --version); \
	export NO_MKDOCS_2_WARNING=1 PATH="$(BIN):$$PATH"; \
	mike deploy --update-aliases --title "$$release" "$${release%.*}" latest && mike set-default latest

# The sdist and the wheel, in dist/. The same commit gives the same bytes.
package: $(READY)
	@$(BIN)/python -m build --no-isolation

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@PATH="$$PATH:node_modules/.bin"; if command -v stylua >/dev/null; then stylua lua; fi

# Pins everything for every Python and system we run on. No index is named in it: pip asks the one it is set up with.
lock:
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-emit-index-url --upgrade --quiet -o requirements.lock

clean:
	rm -rf .venv dist site node_modules tests/service/node/node_modules tests/service/clients/.venv tests/django/.venv tests/house/typed/node_modules \
		grafana/picture/node_modules bench/node_modules bench/.envs .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "evsched needs Python 3.11 or newer: make PYTHON=python3.x ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make a virtual environment: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
