# make lab       environment, check of the machine, JupyterLab on loopback
# make test      every test: Python, C++ testbenches, notebooks, the lab in a browser
# make reliability   long trials of what must hold up, into docs/reliability.md (some: TRIALS='NAME… --count N')
# make bench         side-by-side benchmarks, into docs/benchmarks.md (BENCH=--strict: what has become worse fails)
# make lock      requirements.lock anew, after a change of dependencies in pyproject.toml
# make audit     ask the Python Packaging Advisory Database about every locked package (needs pypi.org)
# make overlays  rebuild the emulation overlays from hls_src (needs g++ 12 or later); with VOCABULARY=5000 [ENCODERS=2]
#                build one whose embedding has room for so many tokens instead

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AUDIT := .venv-audit
EXTRAS := lab methods test bench
TORCH = $$(sed -n 's/^ *"\(torch==[^"]*\)",.*/\1/p' pyproject.toml)
PORT ?= 8888
# Containers and Alveo hosts are often root's; the server listens on loopback and asks for its token.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Every user of the machine may read what a kernel says at a TCP port. So kernels have sockets in a folder, which is this
# user's alone, and whose short name leaves room for theirs.
RUNTIME = JUPYTER_RUNTIME_DIR=$${JUPYTER_RUNTIME_DIR:-$$(mktemp -d)}

.PHONY: lab test bench reliability lock audit overlays clean

$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "BTT Lab needs Python 3.11 (its packages are pinned for it), not " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	# torch by its version alone: which build it is, for the CPU or for CUDA, and so its hash, the index decides
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(AUDIT)/.installed:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install --quiet pip-audit==2.10.1 uv==0.13.9
	touch $@

lab: $(VENV)/.installed
	$(BIN)/bttlab doctor --self-check
	$(RUNTIME) $(BIN)/jupyter lab $(AS_ROOT) --KernelManager.transport=ipc --ServerApp.ip=127.0.0.1 --ServerApp.port=$(PORT) --ServerApp.root_dir=$(CURDIR) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

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

# The lock is for Python 3.11 on Linux and has a hash of every file of each package but torch. Where torch is built for
# CUDA it would list the libraries of that build, too: so it is made where the index has torch for the CPU.
lock: $(AUDIT)/.installed
	$(AUDIT)/bin/uv pip compile --quiet --generate-hashes $(addprefix --extra ,$(EXTRAS)) --python-version 3.11 --python-platform linux --no-emit-package torch --no-header --output-file requirements.lock pyproject.toml

NOT_AUDITED = echo "not passed: where a package of PyPI is not found, the database at https://pypi.org is out of reach" >&2; exit 1

# --strict: a package that nothing could be learnt about fails the audit, too.
audit: $(AUDIT)/.installed
	$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock || { $(NOT_AUDITED); }
	echo $(TORCH) | $(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps --requirement /dev/stdin || { $(NOT_AUDITED); }

overlays: $(VENV)/.installed
	$(BIN)/python -m bttlab.u50.build $(if $(VOCABULARY),--vocabulary $(VOCABULARY)) $(if $(ENCODERS),--encoders $(ENCODERS))

clean:
	rm -rf $(VENV) $(AUDIT) hls_src/build
