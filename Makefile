# One command per intent. Every target sets up what it needs; a fresh machine wants Python 3.11+, gcc and make.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
VENV := .venv
BIN := $(VENV)/bin
DEVICE ?= cuda:0
STAMP := $(VENV)/.installed
RUNS := $(VENV)/.runs
NEW_PYTHON = $$(sh deploy/find_python.sh "$(firstword $(MAKECMDGOALS) venv)" $(PYTHON))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Where torch is taken from, if not from the usual index: one without CUDA is a tenth as large.
TORCH_INDEX ?=

# Compiled modules are kept: the tests start hundreds of processes of ours.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: venv test lint types contracts tests sweeps pages docs papers models families formats real clients gpu fuzz lock sbom release demo clean

venv: $(STAMP)

$(STAMP): pyproject.toml sim/pyproject.toml constraints.txt
	@python=$(NEW_PYTHON) && "$$python" -m venv $(VENV)
	$(PIP) $(TORCH_INDEX:%=--index-url %) "torch==2.13.0"
	$(PIP) -e ".[test,bench,docs,dashboard,import]" -e ./sim
	touch $@

# What runs, and nothing that tests, measures or writes documents.
$(RUNS): pyproject.toml constraints.txt
	@python=$(NEW_PYTHON) && "$$python" -m venv $(VENV)
	@echo "Installing what MoLink runs with into $(VENV): about a minute, more with an NVIDIA card."
	@sh deploy/install_runs.sh $(BIN)/python $(TORCH_INDEX)
	@touch $@

test: lint types contracts tests

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: venv
	$(BIN)/mypy

contracts: venv
	$(BIN)/lint-imports

# Two processes, whole files each, long ones first (tests/conftest.py): a file's tests share what they made.
tests: venv
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# More formats, families, cards and seeds of what `make test` tries on some; some minutes.
sweeps: venv
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m sweeps

# Types every command of the documents into a real cluster; some minutes, beyond those of `make test`.
pages: venv
	$(BIN)/python -m pytest -m pages tests/docs_site

# The documents as a site, in build/site; broken links are errors. To read it: python -m http.server -d build/site
docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Every simulated figure of docs/papers: what each command prints, by page, in build/papers; two cores, under an hour.
papers: venv
	$(BIN)/python -m tools.papers --out build/papers

# Tries every family of the installed transformers and writes docs/models.md; some minutes.
models: venv
	$(BIN)/python -m tools.models_page

# Families with published settings in miniature, in stages and through REST, and their table in the page; a quarter of an hour.
families: venv
	$(BIN)/python -m pytest -m families --page docs/benchmarks/hybrid.md tests/end_to_end/sweeps

# Every format of quantized weights in four architectures, and their table in the page; a quarter of an hour.
formats: venv
	$(BIN)/python -m pytest -m formats --page docs/benchmarks/quantized.md tests/end_to_end/sweeps

# Published models beside the library, and their tables in the page: 750 MB to fetch, then an hour or two. REAL names options.
real: venv
	$(BIN)/python -m tools.real --page $(REAL)

# Runs unmodified agents, libraries and tools against the API, from the npm and Python indexes; half an hour, and a
# gigabyte in ~/.cache/molink-clients (MOLINK_CLIENTS_CACHE). CLIENTS names some: make clients CLIENTS="codex llm"
clients: venv
	$(BIN)/python -m tools.clients $(CLIENTS)
	$(BIN)/python -m tools.clients --ring $(CLIENTS)

# Ten minutes with a graphics card, and their figures in the page: make gpu DEVICE=cuda:1
gpu: venv
	$(BIN)/python -m tools.experiments.cards.ten_minutes --out build/gpu --device $(DEVICE) \
		--page docs/benchmarks/gpu.md

# Hours; FUZZ names decoders and options: make fuzz FUZZ="wire-message --runs 10000"
fuzz: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]" -e ./sim
	$(BIN)/python -m tests.fuzz.guided $(FUZZ)

# Pins what MoLink runs with, by hash; after a change of dependencies or of constraints.txt.
lock: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	$(BIN)/python -m tools.locks

# What is in a coordinator's installation, in CycloneDX's JSON.
sbom: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "cyclonedx-bom>=7"
	mkdir -p dist
	cat molink/*.lock | $(BIN)/python -W ignore -m cyclonedx_py \
		requirements --pyproject pyproject.toml --output-format JSON --output-file dist/sbom.cdx.json -

# Wheels, source, installer, checksums and a signature, in dist/release: make release RELEASE_KEY=FILE
release: venv
	$(BIN)/python -m tools.release --out dist/release $(RELEASE_KEY:%=--key %)

demo: $(if $(wildcard $(STAMP)),venv,$(RUNS))
	$(BIN)/molink demo

clean:
	rm -rf $(VENV) build/site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .fuzz
