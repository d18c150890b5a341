# Everything a developer runs, and everything CI runs. `make` alone lists the targets.

PYTHON ?= python3
JOBS ?= 2
NET ?= resnet50
SEEDS ?= 300
TARGET ?= cuda
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv demo test fuzz bench conformance cuda-conformance nets cuda-nets lint format docs docs-check bench-planned bench-memory bench-packing packing-check gpu-check gpu-pack gpu-dry-run cuda-link-check ptx-check lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(READY) ## create .venv from requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## compile and run ResNet-50; compare memory, result and time (NET=squeezenet for another)
	@$(BIN)/python bench/demo.py $(NET)

test: $(READY) ## run all tests: lit, then pytest
	$(BIN)/lit -q -j $(JOBS) test
	$(BIN)/python -m pytest -n $(JOBS)

fuzz: $(READY) ## compile random networks in every way and compare with ONNX Runtime (minutes; SEEDS=1000:2000 for others)
	$(BIN)/python test/fuzz.py --seeds $(SEEDS)

bench: $(READY) ## time networks, whole and in stripes, against ONNX Runtime, in turns, one thread (NETS="a.onnx b.onnx" for others)
	$(BIN)/python bench/latency.py $(NETS)

conformance: $(READY) ## run ONNX's backend suite (minutes): counts of passed, failed and refused tests
	$(BIN)/python bench/conformance.py -j $(JOBS)

cuda-conformance: $(READY) ## run ONNX's backend suite under the CUDA simulator (minutes)
	$(BIN)/python bench/conformance.py -j $(JOBS) --gpu

nets: $(READY) ## run the networks of the paper at real size against ONNX Runtime (minutes; needs ../shared)
	$(BIN)/python -m pytest --slow -m slow test/end_to_end/test_paper_nets.py

cuda-nets: $(READY) ## run well-known networks on small images under the CUDA simulator (minutes)
	$(BIN)/python -m pytest --slow -m "slow or not slow" test/lowering/cuda/test_nets.py test/lowering/cuda/test_models.py

lint: $(READY) ## ruff, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## regenerate the generated pages of docs/
	$(BIN)/python docs/generate.py

docs-check: $(READY) ## fail if a generated page is out of date
	$(BIN)/python docs/generate.py --check

bench-planned: $(READY) ## recompute the table of planned memory in README.md
	$(BIN)/python bench/memory.py
	$(BIN)/python docs/generate.py

bench-memory: $(READY) ## plan and run the paper's networks, beside ONNX Runtime and PyTorch (minutes)
	$(BIN)/python bench/memory_measured.py

bench-packing: $(READY) ## pack 100,000 synthetic buffers of several kinds: gap and CPU time (minutes)
	$(BIN)/python bench/packing.py

packing-check: $(READY) ## check 100,000 random plans by brute force, and large traces (minutes)
	$(BIN)/python -m pytest --slow -m slow -n $(JOBS) test/planning

gpu-check: $(READY) ## compare networks on this machine's GPU with ONNX Runtime, and time them beside PyTorch
	$(BIN)/python bench/gpu_check.py --find
	$(BIN)/python bench/gpu_prepare.py --target $(TARGET) -o build/gpu/networks $(NETS)
	$(BIN)/python bench/gpu_check.py --folder build/gpu/networks --results bench/results $(NETS)

gpu-pack: $(READY) ## pack gpu-check for a machine with a GPU and without a network (TARGET=cuda:sm_90 for its own code)
	$(BIN)/python bench/gpu_prepare.py --target $(TARGET) -o build/gpu/networks $(NETS)
	$(BIN)/python bench/gpu_pack.py --networks build/gpu/networks -o build/gpu/gpu-pack.tar.xz $(NETS)

gpu-dry-run: $(READY) ## gpu-check of ops and small networks under the simulator, without a GPU
	$(BIN)/python bench/gpu_prepare.py --target $(TARGET) -o build/gpu/networks op small
	$(BIN)/python bench/gpu_check.py --folder build/gpu/networks --simulate op small

# Wheels that only these checks read; nothing of them is installed into .venv.
build/nvidia/%: bench/nvidia/%.txt $(READY)
	rm -rf $@
	$(BIN)/python -m pip install --quiet --no-deps --no-cache-dir --require-hashes --target $@ -r $<
	touch $@

cuda-link-check: build/nvidia/libraries ## check headers and symbols against NVIDIA's libraries (1 GB to download)
	OCCAMY_CUDA_HEADERS=$$(find $< -type d -name include | paste -sd:) $(BIN)/python -m pytest test/lowering/cuda/test_api.py
	$(BIN)/python bench/cuda_link_check.py --libraries $<

ptx-check: build/nvidia/assemblers ## assemble the kernels of all networks for all architectures (88 MB to download)
	$(BIN)/python bench/ptx_check.py --assemblers $<

lock: $(READY) ## refresh requirements.lock (see CONTRIBUTING.md)
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --extra dev \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file requirements.lock pyproject.toml

clean: ## remove everything that is not in the repository, but .venv
	git clean -fdxq -e $(VENV)
