# Everything this project needs on a fresh Debian 12 machine is set up by these targets; each says what it installs.
#   make demo     the main job end to end on a throwaway Slurm cluster
#   make test     all tests (real Slurm, PostgreSQL, torchrun)
#   make test SLURM=24.11                 those of Slurm with another release's, of Debian's mirror; as root. 26.05 too
#   make test SLURM_SOURCE=FOLDER         the same with a Slurm that is built from its source
#   make check    fast tests, ruff, mypy
#   make coverage lines that the unit tests reach, in htmlcov
#   make venv     .venv alone; another Python: PYTHON=python3.13 VENV=.venv313 make check
#   make hooks    ruff, mypy, the layering test and the check of the subject at each commit
#   make lock     requirements-dev.txt anew
#   make cluster  a throwaway Slurm cluster until Ctrl-C
#   make docs     the documentation site, in build/site
#   make deb      Debian packages, in build/deb; for Debian 13, in build/deb13: make deb DEBIAN=13
#   make rpm      packages for EL 9, in build/rpm
#   make dist     wheel and sdist, checked for PyPI, in build/dist
#   make launcher build/synergy-launch.pyz, the launcher in one file
#   make test-deb installs, upgrades and removes them in fresh Debians 12 and 13, as docs/admin/install.md says
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# On machines without a GPU the CPU build is pinned here, never in the package itself.
TORCH ?= torch==2.13.0
MEGATRON ?= megatron-core==0.16.1
TORCH_INDEX ?=
SLURM ?=
SLURM_SOURCE ?=
DEBIAN ?= 12
# Where a shell says that Python may keep no bytecode, each of the tests' several thousand processes would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
OTHER_SLURM = $(BIN)/python -m tests.throwaway.other_slurm $(if $(SLURM_SOURCE),--source '$(SLURM_SOURCE)',$(SLURM))

.PHONY: demo test coverage check venv system cluster clean lint fast hooks lock docs deb rpm dist launcher test-deb

demo: system venv
	$(BIN)/python -m tests.demo

# Of the integration tests three at a time on two cores: they wait for most of their time. Those that fail there run once more, by
# themselves; one that passes only then depends on how busy the machine is, which is a fault of the test: its name stands in the output.
AGAIN = || { [ $$? = 1 ] && echo "== once more, one at a time: what failed" && $(BIN)/python -m pytest -v --lf --lfnf=none
ifeq ($(SLURM)$(SLURM_SOURCE),)
test: system venv lint
	$(BIN)/python -m pytest tests/unit -q -n 2 $(AGAIN) tests/unit; }
	$(BIN)/python -m pytest tests/integration -q -n 3 --dist loadfile --no-loadscope-reorder $(AGAIN) tests/integration; }
else
test: system venv
	$(OTHER_SLURM) $(BIN)/python -m pytest tests/unit tests/integration -q -n 2 --dist loadfile -m slurm
endif

# Of the unit tests only: it makes them three times slower, and most of the others' time passes in processes of their own.
coverage: venv
	$(BIN)/python -m pytest tests/unit -q -n 2 --cov --cov-report=html
	@echo "== coverage of the unit tests, in %: $$($(BIN)/coverage report --format=total); by line: htmlcov/index.html"

check: venv lint fast

fast:
	$(BIN)/python -m pytest tests/unit -q -n 2 -m "not slow and not slurm and not postgres and not training"

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

venv: $(VENV)/.ready

$(VENV)/.ready: setup.cfg pyproject.toml Makefile requirements-dev.txt
	@echo "== $(VENV): $(TORCH), $(MEGATRON), psutil, and this package with its test tools (about 1.3 GB)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: PYTHON=/path/to/python3.11 make ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c requirements-dev.txt $(TORCH)
	$(BIN)/pip install -q --disable-pip-version-check -c requirements-dev.txt $(MEGATRON) psutil
	$(BIN)/pip install -q --disable-pip-version-check -c requirements-dev.txt -e '.[test,postgresql]'
	@touch $@

hooks: venv
	$(BIN)/pre-commit install
	$(BIN)/pre-commit install --hook-type commit-msg

# One version of each for all Pythons that the package supports (mypy reads numpy's types); torch and megatron-core are pinned above.
lock: venv
	$(BIN)/pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip compile -q --universal --fork-strategy fewest --upgrade --python-version 3.11 --extra test --extra postgresql --strip-extras --no-annotate \
		--custom-compile-command 'make lock' -o requirements-dev.txt setup.cfg

# Debian packages: only what is missing, only as root or through sudo.
system:
	@tests/install-packages

cluster: system venv
	$(BIN)/python -m tests.throwaway.slurm --nodes $(or $(NODES),a100:2x4)

# An environment of its own, with the extra `docs` alone: neither tests nor nodes need what builds the site.
DOCS_NEEDS = import configparser; c = configparser.ConfigParser(); c.read("setup.cfg"); print(*c["options.extras_require"]["docs"].split())

docs: build/venv-docs/.ready
	build/venv-docs/bin/sphinx-build -W --keep-going -q -b html docs build/site
	@echo "== build/site/index.html"

build/venv-docs/.ready: setup.cfg
	@echo "== build/venv-docs: Sphinx and its theme (about 120 MB)"
	$(PYTHON) -m venv build/venv-docs
	build/venv-docs/bin/pip install -q --disable-pip-version-check $$($(PYTHON) -c '$(DOCS_NEEDS)')
	@touch $@

# The launcher in one file, for containers: docs/user/containers.md.
launcher: venv
	@$(BIN)/python -m packages.launch_archive

deb: venv
	@echo "== three packages; pip fetches the libraries of synergyctl (about 70 MB)"
	$(BIN)/python -m packages.deb --debian $(DEBIAN)

# rpmbuild: on Debian in the package rpm
rpm: venv
	@echo "== build/rpm: three packages for EL 9; pip fetches the libraries of synergyctl (about 70 MB)"
	$(BIN)/python -m packages.rpm

dist: venv
	$(BIN)/pip install -q --disable-pip-version-check build twine
	rm -rf build/dist && $(BIN)/python -m build --outdir build/dist .
	$(BIN)/twine check --strict build/dist/*

# Six minutes and 800 MB more at the first run, for the fresh Debians that it keeps in build/debian.
test-deb: venv
	$(MAKE) deb DEBIAN=12
	$(MAKE) deb DEBIAN=13
	$(BIN)/python -m pytest tests/packages -q

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov *.egg-info
