# Every target first makes .venv and installs the pinned dependencies, so a fresh clone needs only python3 and make.

VENV := .venv
BIN := $(VENV)/bin

# The first of these that is recent enough and can make environments; `make PYTHON=...` names another one.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; \
	done)

EXTRAS_run :=
# Spark is installed and tested where Java is found; without it those tests are skipped.
SPARK := $(shell command -v java >/dev/null 2>&1 && echo ,spark)
EXTRAS_dev := [dev,plots,explore,hub,mcp,docs$(SPARK)]

.DEFAULT_GOAL := help
.PHONY: help run test test-long kernels bench lint format docs lock clean
.NOTPARALLEL:  # two installs into one environment would race

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

run: $(VENV)/run.stamp  ## Simulate a world, forecast it, print one table and explain one forecast
	$(BIN)/bridgemem demo

# One torch thread in each of the two workers: more would only wait for each other. Slow files come first: tests/conftest.py.
test: lint  ## Check the code, then run every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# No two at once: several of them measure memory and time.
test-long: $(VENV)/dev.stamp  ## Run the proofs that take minutes: soaks, kills, large data
	BRIDGEMEM_LONG_RECORDS=results/long.jsonl $(BIN)/python -m pytest -m long -rA

# What must give the same bits, or stay within its tolerance, on every processor: docs/concepts/numerics.md.
# The machine's own kernels ran in `make test`.
KERNELS = $(filter-out $(shell $(BIN)/python -c "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"), \
	default avx2)
SENSITIVE := tests/test_numerics.py tests/test_equations.py tests/forecasting/test_calibration.py tests/residuals \
	tests/causality tests/evidence tests/ranking tests/live/test_later_names.py tests/live/test_forecasting.py \
	tests/backbones/test_open_vocabulary.py tests/backbones/test_infer.py tests/backbones/test_ensemble.py

kernels: $(VENV)/dev.stamp  ## Run the numerically sensitive tests under plain and AVX2 kernels, but for the machine's own
	for kernel in $(KERNELS); do \
		echo "ATEN_CPU_CAPABILITY=$$kernel"; \
		ATEN_CPU_CAPABILITY=$$kernel OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(SENSITIVE) || exit 1; \
	done

bench: $(VENV)/run.stamp  ## Measure what the method costs as ratios, and write results/speed.md
	$(BIN)/python -m benchmarks; status=$$?; $(BIN)/python -m benchmarks.default && $(BIN)/python -m benchmarks.curve && \
		$(BIN)/python -m benchmarks.report; exit $$status

lint: $(VENV)/dev.stamp  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/dev.stamp  ## Build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: $(VENV)/dev.stamp  ## Write the container's lock file, constraints-container.txt, from constraints.txt
	$(BIN)/python -m tools.lock_container

clean:  ## Remove the environment, caches and builds; runs/ stays
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written only after a whole install. Without any stamp an install was cut short, so it starts over empty.
$(VENV)/%.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Install python3 >= 3.11 with its venv module, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing into $(VENV), a minute or so."
	@test -e $(VENV)/run.stamp || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(VENV)/*.stamp
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(EXTRAS_$*)"
	@touch $(VENV)/run.stamp $@
