# Two commands: `make demo` and `make test`. `make help` lists the rest; docs/development.md
# says how long each takes. Every target sets the machine up first: .ci/setup, a no-op when done.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin
# Three processes on two cores, for some tests wait; what neighbours share is set up once, and who is
# done takes over from the others. Five for the tests with a real Slurm, most of whose time is
# waiting. There a whole file goes to one of them, because its tests share a cluster, and the longest
# first (see tests/durations.py); each process collects only the files that have such a test, or the
# folder of a helper that marks them. Pytest's "no tests were selected" (exit 5) is a failure here like
# every other: a suite that vanished must not pass.
PURE := pytest -n 3 --dist worksteal -m "not slurm and not nightly" --durations=10
REAL := pytest -n 5 --dist loadscope --no-loadscope-reorder -m "slurm and not nightly" --durations=10
WITH_SLURM = $(shell grep -rl 'mark\.slurm' tests --include='*.py' | sed -E '/\/test_[^/]*$$/!s,/[^/]*$$,,' | sort -u)
DECIDING := $(wildcard tests/jobs/test_*.py) tests/jobs/hangs/test_hangs.py tests/capacity tests/engine tests/faults tests/insight tests/nodes tests/vocabulary
# Where the environment forbids to write bytecode, every process of every test compiles hpctl again:
# 1.4 s of a processor for a sandbox with its daemon, 9 s for each of the five that collect the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@echo "hpctl: self-healing Slurm GPU clusters on SageMaker HyperPod"
	@echo
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: ## Install what is missing (Debian packages, .venv); quick when nothing is
	@.ci/setup

# The journal's contract suite starts these servers itself; a stand-in for NVIDIA's library and the
# SPANK plugin are compiled, the latter against Slurm's headers; a file system is made to be frozen;
# checkpoints are written by torch and what stands on it. Nothing else needs them.
.PHONY: test-packages
test-packages: setup
	@.ci/setup --frameworks slurmdbd postgresql mariadb-server-core mariadb-client-core prometheus chromium gcc libc6-dev libslurm-dev e2fsprogs shellcheck debootstrap

.PHONY: demo
demo: setup ## Break a node under a training job and watch the cluster heal itself
	@$(BIN)/hpctl sandbox demo

.PHONY: test
test: static test-pure test-slurm ## Format, lint, types, import rules and the tests (10 minutes)

.PHONY: check
check: static test-packages ## The inner loop: everything static, and the quick tests without Slurm (under a minute)
	$(BIN)/$(PURE) -m "not slurm and not nightly and not slow and not integration" tests

.PHONY: static
static: setup ## Format, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports & $(BIN)/mypy && wait $$!

.PHONY: test-pure
test-pure: test-packages ## The tests that need no Slurm
	.ci/once-more $(BIN)/$(PURE) tests

# Only the tests of the rooms that decide: what else runs this code would hide a branch that nothing
# checks. The badge is about all of it, the gate about the files that pyproject.toml lists.
.PHONY: coverage
coverage: setup ## Branches that the quick tests run of what decides: a gate and a badge (3 minutes)
	$(BIN)/$(PURE) -m "not slurm and not nightly and not slow and not integration" \
		--cov --cov-report= --cov-fail-under=0 $(DECIDING)
	$(BIN)/python -m tools.coverage_badge docs/coverage.svg
	$(BIN)/coverage report

.PHONY: test-trixie
test-trixie: setup ## `make test` on a minimal Debian 13 with make and git alone (needs root)
	@.ci/matrix --bare trixie test

.PHONY: test-floor
test-floor: setup ## The quick tests on Python 3.10, where one is found (PYTHON310 names it)
	@.ci/floor

.PHONY: test-slurm
test-slurm: test-packages ## The tests against a real Slurm, on loopback
	@$(BIN)/python -m tests.clusters.lifecycle.chroot
	.ci/once-more $(BIN)/$(REAL) $(WITH_SLURM)

.PHONY: durations
durations: test-packages ## Record how long each file of tests takes: they run in that order
	-$(BIN)/$(PURE) --record-durations tests
	-$(BIN)/$(REAL) --record-durations $(WITH_SLURM)

# TIERS names some of them: TIERS="slurm soak".
.PHONY: nightly
nightly: test-packages ## The long tiers, and one page of results (8 h on 2 cores; needs root)
	@.ci/setup prometheus-alertmanager
	@.ci/nightly $(TIERS)

# INPUTS and SEED may be given; the same ones play the same inputs, on however many cores.
.PHONY: hostile
hostile: setup ## A million hostile inputs through the non-interference property (20 min on 2 cores)
	$(BIN)/python -m tests.engine.machine.walls $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

# Faults of every kind at random over training jobs. MINUTES and SEED may be given. FAULTS names those
# of hpctl's own parts that take turns with them (needs root): FAULTS=all; FAULTS=list lists them.
.PHONY: soak
soak: setup ## At least 20 minutes of faults over training jobs: nothing lost, nothing twice
	@$(if $(FAULTS),.ci/setup gcc libc6-dev)
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED)) \
		$(if $(filter list,$(FAULTS)),--list-faults,$(if $(FAULTS),--faults $(FAULTS)))

# SUITES names one of them alone: SUITES=forky.
.PHONY: test-matrix
test-matrix: setup ## Scheduler contract, hpctl run and demo inside Debian trixie and forky (needs root)
	@.ci/matrix $(SUITES)

.PHONY: proof
proof: test-packages ## Kill the libraries' checkpoint writers 1000 times; a new seed each run
	$(BIN)/python -m tests.checkpoints.proof $(PROOF)

# For a machine that has a GPU and no network: tests/gpu/README.md.
.PHONY: gpu-carry
gpu-carry: setup ## Fill build/gpu-carry with what `make gpu-proof` needs there
	@$(BIN)/python -m tests.gpu.carry

# OUT, BUDGET (seconds), ONLY (names of parts); DRY=1 needs no GPU. No setup: the machine is not ours.
.PHONY: gpu-proof
gpu-proof: ## Measure hpctl on this machine's GPU, in 8 minutes (DRY=1: with stand-ins)
	@tests/gpu/run.sh

# SECONDS_EACH for each decoder; atheris guides it where it is installed (pip install atheris).
.PHONY: fuzz
fuzz: test-packages ## Feed every decoder with what nobody would write, 10 minutes each
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS_EACH),600)

.PHONY: bench
bench: setup ## Measure the figures of benchmarks/README.md
	$(BIN)/python -m benchmarks

# SLURM_INCLUDE names the directory of another Slurm's slurm/spank.h. Headers that are here are used.
.PHONY: spank
spank: ## Build the SPANK plugin (srun|sbatch --resilient) against the installed Slurm
	@{ slurm_plugins/build_spank.sh --headers $(SLURM_INCLUDE) && command -v cc; } >/dev/null 2>&1 || \
		.ci/setup libslurm-dev gcc libc6-dev
	@slurm_plugins/build_spank.sh build/hpctl_spank.so $(SLURM_INCLUDE)

# MACHINE=aarch64 for the other one. Wheels come from the package index that pip knows.
.PHONY: package
package: setup ## Build wheels and a .deb that needs no network, under dist/
	$(BIN)/python debian/build.py $(if $(MACHINE),--machine $(MACHINE))
	cd hpctl/client && $(abspath $(BIN))/python -m hatchling build -t wheel -d $(abspath dist)

# To be run in the environment in which `make test` passed. `make release` packs these versions.
.PHONY: constraints
constraints: test-packages ## Pin the versions of this environment in constraints.txt
	$(BIN)/python -m tools.constraints

# Refuses a tree that is not ready: versions, the changelog's section, files that are not committed.
.PHONY: release
release: setup ## Check the tree, and build all that a release consists of, under dist/
	$(BIN)/python -m tools.release

.PHONY: corpus
corpus: setup ## Play the fault corpus: each case gets the verdict that is right for it
	$(BIN)/pytest -q tests/detection/corpus

# Strict: a broken link, or a command, key or view that is not documented, fails. The Material theme
# is installed by the first run; nothing else needs it.
.PHONY: docs
docs: setup ## Write the generated pages of docs/, and build the site under build/site
	$(BIN)/python -m docgen
	@$(BIN)/python -c 'import material' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.PHONY: format
format: setup ## Format the code and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: clean
clean: ## Remove .venv, caches and build output (not the matrix's roots)
	rm -rf .venv .setup.lock build dist .hypothesis .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
