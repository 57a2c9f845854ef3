# `make` lists all targets. Needs make and Python 3.11 or later. Packages are installed in .venv with the versions of
# constraints.txt, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# --quiet twice: errors only. With one, pip warns about every configured index folder that does not exist.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
OSWORLD_VENV := .venv-osworld
VLLM_VENV := .venv-vllm
VLLM := $(VLLM_VENV)/.installed
OPENENV_VENV := .venv-openenv
OPENENV := $(OPENENV_VENV)/.installed
BROWSERGYM_VENV := .venv-browsergym
BROWSERGYM := $(BROWSERGYM_VENV)/.installed
INSPECT := .venv-inspect/.installed
VERIFIERS := .venv-verifiers/.installed
TRL := .venv-trl/.installed
RAY := $(VENV)/.installed-ray
MINIWOB := $(VENV)/.installed-miniwob
CUA_AGENT := $(VENV)/.installed-cua-agent

LINT := $(BIN)/ruff format --check && $(BIN)/ruff check && $(BIN)/mypy
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest
# Tests with these options. What fails is repeated once, one test at a time: many tests start processes, and a slow
# machine may be the reason. A test that passes only then stays listed as FAILED above, and has a fault to find.
tests = $(PYTEST) $(1) || { [ $$? = 1 ] && echo "== Repeating the failed tests, one at a time" && \
	$(PYTEST) $(1) -n 0 --last-failed --last-failed-no-failures none && \
	echo "== Passed when repeated: the tests listed as FAILED above are not reliable"; }

# Tests start hundreds of Python processes. Without bytecode files, each would compile the package again.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help train compare test test-slow test-real test-vllm test-browser test-cluster osworld miniwob browsergym openenv inspect verifiers trl vllm lint format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: $(RUNTIME) ## train the tiny model on the built-in desktop; ARGS="--run.seed 1" adds options
	$(BIN)/arpo train $(ARGS)

compare: $(RUNTIME) ## repeat the published comparison with three seeds (one night on two cores); ARGS="--jobs 2" runs two at once
	$(BIN)/arpo compare paper paper/grpo paper/ds_grpo paper/rft paper/dpo paper/kto \
		--against paper/grpo --seeds 3 --out runs/groups-of-8 $(ARGS)
	$(BIN)/arpo compare paper paper/grpo paper/ds_grpo \
		--against paper/grpo --seeds 3 --out runs/groups-of-2 --rollout.group_size 2 --train.epochs 16 $(ARGS)

# Style and types are checked beside the tests; their output follows. Three workers leave no core idle while a test waits.
test: $(DEV) ## check style and types, and run the tests; ARGS="-k replay" selects tests
	@trap 'kill 0' INT; ( $(LINT) ) >$(VENV)/lint.log 2>&1 & lint=$$!; failed=; \
	{ $(call tests,-n 3 -m "not slow" $(ARGS)); } || failed="$(BIN)/python -m pytest NAME (names are listed above)"; \
	wait $$lint || failed="$${failed:+$$failed; }make lint"; cat $(VENV)/lint.log; \
	[ -z "$$failed" ] || { echo "Failed. To repeat it: $$failed" >&2; exit 1; }

test-slow: $(DEV) $(OPENENV) $(INSPECT) $(VERIFIERS) $(TRL) ## run the tests that take long
	@$(call tests,-n 2 -m slow $(ARGS))

test-real: $(DEV) $(CUA_AGENT) $(OPENENV) osworld ## run the tests on real desktops; FULL=1 includes the slow ones
	@$(call tests,-n 2 tests/real $(if $(FULL),,-m "not full") $(ARGS))

test-vllm: $(DEV) $(VLLM) ## run the tests with vLLM, on the CPU
	@$(call tests,-n 2 --dist loadfile tests/vllm $(ARGS))

test-browser: $(DEV) $(MINIWOB) $(BROWSERGYM) ## run the tests in Debian's Chromium: arpo view, and web applications as environments
	@test -x /usr/bin/chromium && command -v bwrap >/dev/null || \
		{ echo "Chromium or bubblewrap is missing. On Debian or Ubuntu: apt-get install chromium bubblewrap" >&2; exit 1; }
	@$(call tests,-n 2 --dist loadfile tests/browser $(ARGS))

test-cluster: $(RAY) $(VLLM) ## run the tests on a Ray cluster of four nodes on this machine
	@$(call tests,-n 2 --dist loadfile --no-loadscope-reorder tests/ray_cluster $(ARGS))

osworld: ## install real desktops: Debian packages (needs root or sudo), and desktop-env in .venv-osworld
	PYTHONPATH=src $(PYTHON) -m arpo.envs.osworld.install $(OSWORLD_VENV)

miniwob: $(MINIWOB) ## install the tasks of MiniWoB++ (6 MB)

browsergym: $(BROWSERGYM) ## install BrowserGym with MiniWoB++ in .venv-browsergym (250 MB); needs Chromium

openenv: $(OPENENV) ## install the package openenv in .venv-openenv, for the tests of its client and server (170 MB)

inspect: $(INSPECT) ## install Inspect in .venv-inspect (370 MB)

verifiers: $(VERIFIERS) ## install verifiers in .venv-verifiers (600 MB)

trl: $(TRL) ## install TRL and the package openenv in .venv-trl (1.6 GB)

vllm: $(VLLM) ## install vLLM for CPUs in .venv-vllm (2.5 GB)

lint: $(DEV) ## check style and types
	$(LINT)

format: $(DEV) ## format the code and apply automatic fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove installed and cached files; keep runs/
	rm -rf $(VENV) $(OSWORLD_VENV) $(VLLM_VENV) $(OPENENV_VENV) $(BROWSERGYM_VENV) .venv-inspect .venv-verifiers .venv-trl build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is what a half-made environment lacks, so its presence stands for the whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)

# The build tool is installed first and used from here, so that it is pinned too.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing into $(VENV); this takes a minute or two, once."
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable .
	@touch $@

$(DEV): $(RUNTIME)
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

$(RAY): $(DEV)
	$(PIP) --no-build-isolation --editable '.[dev,ray]'
	@touch $@

# Its parsers are compared with ours. They run without the packages that it needs.
$(CUA_AGENT): $(DEV)
	$(PIP) --no-deps cua-agent
	@touch $@

# Without its dependencies: they are for its own way to Chromium.
$(MINIWOB): $(RUNTIME)
	$(PIP) --no-deps miniwob
	@touch $@

# In an environment of its own: it needs an older Playwright than the tests.
$(BROWSERGYM): requirements-browsergym.txt
	$(PYTHON) -m venv --clear $(BROWSERGYM_VENV)
	$(BROWSERGYM_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --requirement requirements-browsergym.txt
	@touch $@

# Without most of its dependencies: those of its pages and its command line have 300 MB.
$(OPENENV): requirements-openenv.txt
	$(PYTHON) -m venv --clear $(OPENENV_VENV)
	$(OPENENV_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --requirement requirements-openenv.txt
	$(OPENENV_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps openenv==0.10.0
	@touch $@

# In two environments: they need different versions of the package openai.
$(INSPECT) $(VERIFIERS): .venv-%/.installed: requirements-%.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --requirement $<
	@touch $@

# Torchvision is for GPUs, torch may be for CPUs: the patch lets it load.
$(TRL): requirements-trl.txt requirements-openenv.txt tests/vllm/patch_torchvision.py
	$(PYTHON) -m venv --clear .venv-trl
	.venv-trl/bin/python -m pip install --quiet --quiet --disable-pip-version-check --requirement requirements-openenv.txt
	.venv-trl/bin/python -m pip install --quiet --quiet --disable-pip-version-check --requirement requirements-trl.txt
	.venv-trl/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps openenv==0.10.0 torchvision==0.28.0
	.venv-trl/bin/python tests/vllm/patch_torchvision.py
	@touch $@

# vLLM needs libnuma, which no wheel contains. Without it, vLLM fails late with an unclear message.
$(VLLM): requirements-vllm.txt tests/vllm/patch_torchvision.py
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || \
		{ echo "vLLM needs libnuma.so.1. On Debian or Ubuntu, install it with: apt-get install libnuma1" >&2; exit 1; }
	@echo "Installing into $(VLLM_VENV); this takes some minutes, once."
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps \
		--requirement requirements-vllm.txt
	$(VLLM_VENV)/bin/python tests/vllm/patch_torchvision.py
	@touch $@
