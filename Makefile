# make lab       environment, check of the machine, JupyterLab on loopback
# make test      every test: Python, C++ testbenches, notebooks, the lab in a browser
# make reliability   long trials of what must hold up, into docs/reliability.md (some: TRIALS='NAME… --count N')
# make bench         side-by-side benchmarks, into docs/benchmarks.md (BENCH=--strict: what has become worse fails)
# make overlays  rebuild the emulation overlays from hls_src (needs g++ 12 or later); with VOCABULARY=5000 [ENCODERS=2]
#                build one whose embedding has room for so many tokens instead

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8888
# Containers and Alveo hosts are often root's; the server listens on loopback and asks for its token.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: lab test bench reliability overlays clean

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info < (3, 12) else "BTT Lab needs Python 3.10 or 3.11 (pynq 3.0.1), not " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	# torch first and pinned: the pin of pyproject.toml, so that nothing later pulls another build
	$(BIN)/pip install --quiet $$(sed -n 's/^ *"\(torch==[^"]*\)",.*/\1/p' pyproject.toml)
	$(BIN)/pip install --quiet --editable '.[lab,test,bench]'
	touch $@

lab: $(VENV)/.installed
	$(BIN)/bttlab doctor --self-check
	$(BIN)/jupyter lab $(AS_ROOT) --ServerApp.ip=127.0.0.1 --ServerApp.port=$(PORT) --ServerApp.root_dir=$(CURDIR) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

test: $(VENV)/.installed
	$(BIN)/ruff check lib tests notebooks
	$(BIN)/ruff format --check lib tests
	$(BIN)/pytest --ignore=tests/browser
	# A browser on a busy machine loses a click now and then: what failed is tried once more, and then it counts.
	$(BIN)/pytest -n 0 tests/browser || $(BIN)/pytest -n 0 --last-failed tests/browser

# Threads that wait are to sleep: on a busy machine spinning ones take the cores from those that work.
bench: $(VENV)/.installed
	OMP_WAIT_POLICY=passive $(BIN)/bttlab bench all --docs docs $(BENCH)

reliability: $(VENV)/.installed
	PYTHONPATH=lib:tests $(BIN)/python -m reliability $(TRIALS)

overlays: $(VENV)/.installed
	$(BIN)/python -m bttlab.u50.build $(if $(VOCABULARY),--vocabulary $(VOCABULARY)) $(if $(ENCODERS),--encoders $(ENCODERS))

clean:
	rm -rf $(VENV) hls_src/build
