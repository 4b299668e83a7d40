# What a person types. Needs a POSIX shell, make and Python >= 3.11; pip's own settings (PIP_*) are respected.
.POSIX:
.SUFFIXES:

VENV = .venv
BIN = $(VENV)/bin
PY = $(BIN)/python
LOCK = requirements.lock
# Where set, the Python that the virtual environment is made with.
PYTHON =
# `make lock UPGRADE=--upgrade` takes newer versions; without it the lock changes no more than pyproject.toml asks for.
UPGRADE =
# Passed on to pytest: `make test ARGS='-k shim -x'`.
ARGS =
# Twice as many as a small machine has cores, of which 3 % are idle then: with three processes 16 %.
JOBS = 4
# What `make test` leaves out, by its marks.
LEFT_OUT = cluster or exhaustive
PYTEST = $(PY) -m pytest -q -p no:cacheprovider
# Orphans of its tests are its own: those of others look like what a killed shim has left.
REAPER = $(PY) -I -S tests/support/reaper.py

help:
	@echo 'make demo      a real Claude Code run, end to end, on this machine'
	@echo 'make test      what CI runs; ARGS goes to pytest'
	@echo 'make test-all  all of it: each case on every agent'\''s program, and the largest sizes'
	@echo 'make test-cluster   those in pods of the cluster that KUBECONFIG names; docs/kubernetes.md has its image'
	@echo 'make check     linters, formatting, types, import contracts'
	@echo 'make format    what the linters can put right themselves'
	@echo 'make bench     measures, against the goals'
	@echo 'make fuzz      the property tests of tests/hostile, FUZZ_S=3600 seconds for each file'
	@echo 'make chaos     faults without end against everything at once, CHAOS_S=1800 seconds; SEED= and FAULTS= make it again'
	@echo 'make pictures  the pictures in the README, anew'
	@echo 'make setup     the virtual environment alone ($(VENV))'
	@echo 'make agents    agents that the tests drive, from npm and the package index, into $(VENV)'
	@echo 'make lock      the lock files from pyproject.toml'

# One make at a time fills the environment: the lock is the recipe's shell's, and goes with it, however that ends.
ALONE = exec 9<Makefile; \
	"$$python" -c 'from fcntl import *; flock(9, LOCK_EX | LOCK_NB)' 2>/dev/null || { \
	  echo 'waiting for another make, which fills $(VENV)'; "$$python" -c 'from fcntl import *; flock(9, LOCK_EX)'; \
	}

# The stamps hold checksums of what the environment was made from: a checkout that touches files costs nothing, and a
# changed lock gets a fresh environment, so that nothing lives on that the lock no longer names.
setup:
	@set -eu; \
	want="$$(cat $(LOCK) | cksum) $$(pwd)"; project="$$(cat pyproject.toml | cksum)"; \
	has() { [ "$$(cat "$(VENV)/$$1.stamp" 2>/dev/null)" = "$$2" ]; }; \
	is_made() { $(PY) -c '' 2>/dev/null && has lock "$$want"; }; \
	if is_made; then \
	  if has project "$$project"; then exit; fi; \
	  python=$(PY); \
	else \
	  for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	    if [ "$$python" = "$(PYTHON)" ]; then echo "make: PYTHON=$(PYTHON) is not a Python >= 3.11" >&2; exit 1; fi; \
	    python=; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo 'make: no Python >= 3.11 found on PATH; install one, or say make PYTHON=/path/to/python3' >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "make: $$python lacks venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	  fi; \
	fi; \
	$(ALONE); \
	if ! is_made; then \
	  echo "making $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV); \
	  $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK); \
	  echo "$$want" > $(VENV)/lock.stamp; \
	fi; \
	if ! has project "$$project"; then \
	  $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .; \
	  echo "$$project" > $(VENV)/project.stamp; \
	fi

# Optional parts are left out: they are other builds of programs that come with the Python packages, and keyrings.
agents: setup
	@set -eu; \
	if ! command -v npm >/dev/null; then echo 'make: no npm on PATH; on Debian and Ubuntu: apt install npm' >&2; exit 1; fi; \
	want="$$(cat tests/programs/package-lock.json tests/programs/requirements.txt tests/programs/hermes.lock $(LOCK) | cksum)"; \
	python=$(PY); $(ALONE); \
	if [ "$$(cat $(VENV)/agents/lock.stamp 2>/dev/null)" != "$$want" ]; then \
	  mkdir -p $(VENV)/agents; cp tests/programs/package.json tests/programs/package-lock.json $(VENV)/agents; \
	  (cd $(VENV)/agents && npm ci --silent --ignore-scripts --omit=optional --no-audit --no-fund); \
	  $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/programs/requirements.txt; \
	  if $(PY) -c 'import sys; sys.exit(sys.version_info >= (3, 14))'; then \
	    $(PY) -m venv --clear $(VENV)/agents/hermes; \
	    $(VENV)/agents/hermes/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	      -r tests/programs/hermes.lock; \
	  else \
	    echo 'make: Hermes takes no Python >= 3.14: its tests are skipped' >&2; \
	  fi; \
	  echo "$$want" > $(VENV)/agents/lock.stamp; \
	fi

demo: setup
	@$(PY) -m bench.demo $(AGENT)

# Bytecode is kept whatever the environment says: thousands of short programs would be compiled anew each.
# All of them in JOBS processes; some of them (ARGS) one after another.
test: setup
	@unset PYTHONDONTWRITEBYTECODE; set -- $(ARGS); if [ $$# -gt 0 ]; then exec $(REAPER) $(PY) -m pytest "$$@"; fi; \
	$(PYTEST) -n $(JOBS) --dist worksteal -m 'not ($(LEFT_OUT))'

# Before a release, and where an agent's program has a new version.
test-all:
	@$(MAKE) --no-print-directory test LEFT_OUT=cluster

# A namespace for each module, deleted with it. One after another: pods take their time where their node shares its machine.
# All of them: ARGS='-m cluster'.
test-cluster: setup
	@unset PYTHONDONTWRITEBYTECODE; \
	if [ -z "$${KUBECONFIG:-}" ]; then echo 'make: KUBECONFIG names no cluster' >&2; exit 1; fi; \
	$(REAPER) $(PYTEST) -m 'cluster and not exhaustive' $(ARGS)

# Every check speaks, then any failure fails.
check: setup
	@failed=; \
	for check in 'ruff check' 'ruff format --check' 'mypy' 'lint-imports --no-cache' 'python -m tests.no_git_push' 'python -m tests.wheel'; do \
	  echo "$$check"; $(BIN)/$$check || failed="$$failed, $$check"; \
	done; \
	if [ -n "$$failed" ]; then echo "make check: failed:$${failed#,}" >&2; exit 1; fi

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup
	@$(PY) -m bench

# Seconds for each file of property tests.
FUZZ_S = 3600

fuzz: setup
	@$(PY) -m bench.fuzz --seconds $(FUZZ_S) -- $(ARGS)

# Seconds of it and, to make it again, faults and the seed of the first round.
CHAOS_S = 1800
FAULTS =
SEED =

chaos: setup
	@seed='$(SEED)' faults='$(FAULTS)'; \
	$(PY) -m tests.chaos --seconds $(CHAOS_S) $${seed:+--seed "$$seed"} $${faults:+--faults "$$faults"}

pictures: setup
	@$(PY) -m bench.pictures

# The second lock is the part of the first that a worker's image needs: same versions, no test tools. The third is Hermes.
PIN = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links $(UPGRADE)
COMPILE = $(PIN) --no-emit-package openai-codex-cli-bin pyproject.toml

lock: setup
	$(BIN)/$(COMPILE) --all-extras --group test -o $(LOCK)
	$(BIN)/$(COMPILE) --extra worker --extra kubernetes --extra web --extra codec --group build -c $(LOCK) -o deploy/worker.lock
	$(BIN)/$(PIN) tests/programs/hermes.in -o tests/programs/hermes.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.PHONY: help setup agents demo test test-all test-cluster check format bench fuzz chaos pictures lock clean
