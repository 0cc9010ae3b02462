# Everything runs in a virtual environment of its own, made on the first call and reused after that.
#
#   make mnist                      train handwritten digits on two devices
#   make mnist ARGS="--epochs=2"    the same with further flags
#   make test ARGS="-k mesh -x"     some of the tests
#   make test VENV=/elsewhere PYTHON=python3.12
#   make test VENV=.venv-2.20 CONSTRAINTS=versions.txt    with the versions in that file, for pip

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
CRDS ?=
# A file of constraints for pip. Those of the oldest and of the newest supported versions are in tests/versions.
CONSTRAINTS ?=
# Processes that run tests. Those of several processes go one after the other in any case.
WORKERS ?= 2

BIN := $(VENV)/bin
# Tracing allocates millions of small objects: with jemalloc (on Debian: libjemalloc2), tests take a tenth less time.
# Without its background thread, it would keep the freed memory of threads that have nothing to do: 13 GB in an hour.
JEMALLOC := $(firstword $(wildcard /usr/lib/*/libjemalloc.so.2))
# KerasHub asks for a newer Keras than the oldest that is supported: with a file of constraints it is left out.
HUB := $(if $(CONSTRAINTS),,hub,)
PIP_INSTALL := $(BIN)/python -m pip install $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# One empty file per finished step of the setup: what is older than its inputs is done again.
READY_VENV := $(VENV)/.ready-venv
READY_RUN := $(VENV)/.ready-run
READY_GPU := $(VENV)/.ready-gpu
READY_HUB := $(VENV)/.ready-hub
READY_DEV := $(VENV)/.ready-dev
READY_HOROVOD := $(VENV)/.ready-horovod
READY_READERS := $(VENV)/.ready-readers
READY_DOCS := $(VENV)/.ready-docs
READY_RELEASE := $(VENV)/.ready-release
READY_DEPLOY := $(VENV)-deploy/.ready
READY_MPI := $(VENV)-mpi/.ready-mpi
READY_RAY := $(VENV)-ray/.ready-ray
# Not empty where the driver has a GPU's device file, or its program is found: CUDA's libraries are only installed there.
HAS_GPU := $(wildcard /dev/nvidia[0-9]*) $(shell command -v nvidia-smi 2> /dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup mnist imagenet gpt finetune recommender test test-versions test-oldest test-newest test-next fit-oldest inventory-next gpu-smoke validate-plan parity surface bench bench-data-parallel bench-all-reduce bench-overlap bench-tensor-parallel bench-pipeline bench-model-parallel bench-rank-memory bench-reading bench-sharded bench-experts bench-first-step bench-generation bench-checkpoints bench-watching docs release deploy-tests mpi-environment ray-environment lint ruff mypy format clean

help: ## show this list
	@echo "Usage: make TARGET [ARGS=...] [VENV=$(VENV)] [PYTHON=$(PYTHON)]"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

mnist: $(READY_RUN) ## train handwritten digits on two devices
	$(BIN)/python examples/mnist/main.py --devices=2 $(ARGS)

imagenet: $(READY_RUN) ## train on images that it makes first; with ARGS="--data_dir=..." on yours
	$(BIN)/python examples/imagenet/main.py --model=AlexNet --width=0.25 --image_size=64 \
	  --batch_size=64 --epochs=8 --warmup_epochs=1 --learning_rate=0.02 $(ARGS)

gpt: $(READY_RUN) ## train a language model on this documentation, about two minutes
	$(BIN)/python examples/gpt/main.py $(ARGS)

finetune: $(READY_HUB) ## tune a language model of KerasHub, which it trains first, on source code, about three minutes
	$(BIN)/python examples/finetune/main.py --devices=2 $(ARGS)

recommender: $(READY_RUN) ## train a recommender with tables over two devices, on ratings that it makes first
	$(BIN)/python examples/recommender/main.py --devices=2 $(ARGS)

test: $(READY_HOROVOD) ## run the tests; the first call builds Horovod, about four minutes
	$(if $(JEMALLOC),LD_PRELOAD=$(JEMALLOC) MALLOC_CONF=background_thread:true )$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope $(ARGS)

test-versions: test-oldest test-newest ## run a part of the tests with the oldest and the newest TensorFlow and Keras, half an hour

# Each in an environment of its own beside VENV, Horovod included.
test-oldest test-newest: test-%:
	$(MAKE) setup VENV=$(VENV)-$* CONSTRAINTS=tests/versions/$*.txt
	$(VENV)-$*/bin/python -m pytest -n $(WORKERS) --dist loadscope @tests/versions/suite.txt $(ARGS)

# Of a candidate of TensorFlow and of nightly builds of Keras and KerasHub, which pip would not install together.
test-next: ## run that part with the newest candidate of TensorFlow and nightly builds of Keras and KerasHub
	$(MAKE) $(VENV)-next/.ready-dev VENV=$(VENV)-next CONSTRAINTS=tests/versions/next.txt
	$(VENV)-next/bin/python -m tests.versions.nightly
	$(MAKE) setup VENV=$(VENV)-next CONSTRAINTS=tests/versions/next.txt
	$(VENV)-next/bin/python -m pytest -n $(WORKERS) --dist loadscope @tests/versions/suite.txt @tests/versions/hub.txt $(ARGS)

fit-oldest: ## train with the oldest TensorFlow and Keras, in one process and in two, without Horovod
	$(MAKE) $(VENV)-oldest/.ready-run VENV=$(VENV)-oldest CONSTRAINTS=tests/versions/oldest.txt
	$(VENV)-oldest/bin/python -m tests.versions.fit
	$(VENV)-oldest/bin/python -m strategies.launch --nproc-per-node 2 -m tests.versions.fit MultiWorkerMirroredStrategy

inventory-next: $(READY_RUN) ## compare what we hook into with the newest nightly build of Keras, in seconds
	$(BIN)/python -m tests.versions.inventory_next

gpu-smoke: $(if $(strip $(HAS_GPU)),$(READY_GPU),$(READY_RUN)) ## run the smoke suite on this machine's first GPU, twenty minutes; without one, only say so
	$(BIN)/python -m tests.gpu $(ARGS)

validate-plan: $(READY_HOROVOD) ## print the errors of the planner on published runs, and on runs of this machine, half an hour
	$(BIN)/python -m tests.strategies.planning.validate
	$(BIN)/python benchmarks/planning/main.py $(ARGS)

parity: $(READY_HOROVOD) ## measure parity with one device again and write docs/numbers/parity.md
	$(BIN)/python -m pytest tests/strategies/parity --parity-table docs/numbers/parity.md

surface: $(READY_HOROVOD) $(READY_READERS) ## compare every layer of Keras, and what people do to it, with one device on every mesh, two or three hours; with ARGS=--seconds=600 a random part
	$(BIN)/python -m tests.surface $(if $(findstring --seconds,$(ARGS)),,docs/numbers/surface.md) $(ARGS)

bench: $(READY_RUN) ## measure images/s beside TensorFlow's strategy and plain Keras, about half an hour
	$(BIN)/python benchmarks/mirrored/main.py $(ARGS)

bench-data-parallel: $(READY_HOROVOD) ## measure images/s of two processes beside independent ones, Horovod and torch
	$(BIN)/python benchmarks/data_parallel/main.py $(ARGS)

bench-all-reduce: $(READY_HOROVOD) ## measure GB/s of sums between two processes beside TensorFlow, Horovod and torch
	$(BIN)/python benchmarks/all_reduce/main.py $(ARGS)

bench-overlap: $(READY_HOROVOD) ## show from traces how much of the all-reduce runs beside the backward pass
	$(BIN)/python benchmarks/overlap/main.py $(ARGS)

bench-tensor-parallel: $(READY_RUN) ## measure what layers split over two devices gain, beside torch and Keras on JAX
	$(BIN)/python benchmarks/tensor_parallel/main.py $(ARGS)

bench-pipeline: $(READY_RUN) ## measure what models in stages gain in time and in memory, beside torch
	$(BIN)/python benchmarks/pipeline/main.py $(ARGS)

bench-model-parallel: $(READY_HOROVOD) ## measure a model over two processes, in stages and in shards, beside torch
	$(BIN)/python benchmarks/model_parallel/main.py $(ARGS)

bench-rank-memory: $(READY_HOROVOD) ## measure each rank's memory while a model over four processes builds, loads and trains
	$(BIN)/python benchmarks/rank_memory/main.py $(ARGS)

bench-reading: $(READY_RUN) ## measure images/s and core of reading images from files and TFRecords, beside Keras
	$(BIN)/python benchmarks/reading/main.py $(ARGS)

bench-sharded: $(READY_HOROVOD) ## measure steps with the optimizer in shards over two processes, beside whole ones and torch
	$(BIN)/python benchmarks/sharded/main.py $(ARGS)

bench-checkpoints: $(READY_RUN) ## measure how long saving a checkpoint stops two processes, beside plain files
	$(BIN)/python benchmarks/checkpoints/main.py $(ARGS)

bench-watching: $(READY_RUN) ## measure what it costs to watch a job, beside one that nobody watches
	$(BIN)/python benchmarks/watching/main.py $(ARGS)

bench-first-step: $(READY_RUN) ## measure the first step, in which it is traced and compiled, beside TensorFlow's strategy, half an hour
	$(BIN)/python benchmarks/first_step/main.py $(ARGS)

bench-generation: $(READY_HOROVOD) ## measure text generation over two processes, beside plain KerasHub, ten minutes
	$(BIN)/python benchmarks/generation/main.py $(ARGS)

bench-experts: $(READY_DEV) ## measure training steps of mixtures of experts, sparse beside dense ones of KerasHub
	$(BIN)/python benchmarks/experts/main.py $(ARGS)

docs: $(READY_DOCS) ## build the site of the documentation into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

release: $(READY_RELEASE) ## build sdist and wheel into dist, check them, and train with the wheel in an empty environment
	$(BIN)/python -m tests.release

# Needs root and Debian's packages slurmctld slurmd slurm-client munge openmpi-bin libopenmpi-dev debootstrap iproute2
# openssh-server procps. CRDS names files of Kubernetes' resource definitions to check the manifests with, too.
deploy-tests: $(READY_HOROVOD) $(READY_DEPLOY) $(READY_MPI) $(READY_RAY) ## run deploy/ on Slurm, Open MPI and Ray, in platforms' environments, and in a fresh Debian tree, half an hour
	$(VENV)-deploy/bin/python -m tests.deploy.check_models $(if $(CRDS),--crds $(CRDS))
	DEPLOY_TESTS=all $(BIN)/python -m pytest -p no:xdist -s --parity-all tests/deploy tests/hosts/test_platforms.py $(ARGS)
	$(BIN)/python -m tests.deploy.run_dockerfile

# For tests/deploy/test_mpi.py and test_ray.py, which look for them beside VENV.
mpi-environment: $(READY_MPI) ## install a Horovod that is built with Open MPI, in an environment beside VENV
ray-environment: $(READY_RAY) ## install Ray, in an environment beside VENV

lint: ruff mypy ## check style and types

ruff: $(READY_DEV) ## check style only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: $(READY_DEV) ## check types only
	$(BIN)/mypy

format: $(READY_DEV) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY_HOROVOD) ## install everything, train and test nothing

clean: ## remove the virtual environments and the caches of the tools; finished Horovod wheels stay
	@# VENV may be any path: only what is a virtual environment goes.
	for venv in $(VENV) $(addprefix $(VENV)-,oldest newest next deploy mpi ray); do test ! -f $$venv/pyvenv.cfg || rm -rf $$venv; done
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find strategies keras_ext examples benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY_VENV):
	@command -v $(PYTHON) > /dev/null || { \
	  echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"; \
	  exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed. $(PYTHON) is: $$($(PYTHON) --version)."; \
	  echo "Name a newer one: make PYTHON=/path/to/python3"; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { \
	  echo "$(PYTHON) has no module venv. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; } >&2
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The editable installation keeps sources and environment in step: a changed source needs no reinstallation.
$(READY_RUN): $(READY_VENV) pyproject.toml $(CONSTRAINTS)
	$(PIP_INSTALL) --editable '.[examples]'
	@touch $@

$(READY_GPU): $(READY_VENV) pyproject.toml $(CONSTRAINTS)
	$(PIP_INSTALL) --editable '.[examples,gpu]'
	@touch $@ $(READY_RUN)

$(READY_HUB): $(READY_VENV) pyproject.toml $(CONSTRAINTS)
	$(PIP_INSTALL) --editable '.[examples,hub]'
	@touch $@ $(READY_RUN)

$(READY_DEV): $(READY_VENV) pyproject.toml $(CONSTRAINTS)
	$(PIP_INSTALL) --editable '.[examples,$(HUB)horovod,dev]'
	@touch $@ $(READY_RUN)

$(READY_HOROVOD): $(READY_DEV) strategies/install_horovod.py strategies/_horovod_recipe.py
	$(BIN)/python -m strategies.install_horovod
	@touch $@

$(READY_READERS): $(READY_DEV)
	$(PIP_INSTALL) --editable '.[benchmarks,readers]'
	@touch $@

$(READY_DOCS): $(READY_DEV)
	$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(READY_RELEASE): $(READY_DEV)
	$(PIP_INSTALL) --editable '.[release]'
	@touch $@

$(READY_DEPLOY): tests/deploy/requirements.txt
	$(PYTHON) -m venv $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip install --requirement tests/deploy/requirements.txt
	@touch $@

$(READY_MPI):
	$(MAKE) $(VENV)-mpi/.ready-dev VENV=$(VENV)-mpi
	$(VENV)-mpi/bin/python -m strategies.install_horovod --mpi --cpu
	@touch $@

# It reads the packages of VENV, and has only those of Ray itself: a quarter of a minute.
$(READY_RAY): $(READY_DEV)
	$(BIN)/python -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -c 'import sys, sysconfig as s; open(s.get_path("purelib") + "/venv.pth", "w").write( \
	  "import site; site.addsitedir(%r)" % s.get_path("purelib", vars={"base": sys.argv[1]}))' $(abspath $(VENV))
	$(VENV)-ray/bin/python -m pip install 'ray[train]==2.60.0'
	@touch $@
