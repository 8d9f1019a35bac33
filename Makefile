# From a fresh clone with nothing but Python 3.11 or newer:
#
#     make demo        a matrix product before and after the passes, then a model on real data
#     make test        style, types, and all tests but long random ones and those for TPUs
#     make lint        style and types only
#     make test-random 1,000 random programs, 250 of library calls, and 50 each that are eager,
#                      overlapped, unjitted or of named axes: the same every time, others with SEED=7
#     make slow        the CPU time of each test; fails if one over 5 s is not marked slow
#     make test-long   all tests, with tens of thousands of new random programs
#     make validate    every pass on every example, 2,000 programs and 200 wrong modules, simulated
#     make fuzz        shmap-opt, import and simulation of 10,000 mutated modules; prints the seed
#     make mutants     which of the mistakes listed in test/mutants the tests notice
#     make test-tpu-compiler   compiles for TPUs, without any
#     make test-gpu-compiler   compiles for GPUs, without any; downloads 270 MB
#     make docs        builds the documentation site into site/; warnings and broken links are errors
#     make first-hour  follows README.md line by line, as a new user would, in a fresh environment
#     make clean       removes what the above made
#
# PYTHON is the interpreter to build on, VENV the environment to build, and JAX an optional choice
# among the versions pyproject.toml allows: make test JAX='jax==0.10.2' VENV=.venv-0.10

PYTHON ?= python3
VENV ?= .venv
JAX ?=
SEED ?= 1

BIN := $(abspath $(VENV))/bin

.PHONY: demo test lint test-random slow test-long validate fuzz mutants test-tpu-compiler test-gpu-compiler docs first-hour clean
.DELETE_ON_ERROR:

demo: $(VENV)/.with-demo
	$(BIN)/shmap demo
	@echo; echo "== A model on handwritten digits, partitioned in three ways"
	$(BIN)/python examples/digits.py

# The slowest test takes a minute at most: one that does not end is stopped, and named.
test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal --timeout 300 -m "not long and not tpu"
	PATH="$(BIN):$$PATH" $(BIN)/lit -v test --filter-out /tpu/

# Loading libtpu takes longer than most tests do.
test-tpu-compiler: $(VENV)/.with-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m "tpu and not long"
	PATH="$(BIN):$$PATH" $(BIN)/lit -v test --filter /tpu/

RANDOM_TESTS := test/end_to_end/test_property.py test/end_to_end/test_library_programs.py \
  test/eager/test_eager.py::test_random_programs test/passes/overlap/test_random_overlap.py \
  test/unjit/test_random_unjitted.py test/xmap/test_random_named.py

test-random: $(VENV)/.with-test
	SHMAP_PROPERTY_EXAMPLES=1000 SHMAP_LIBRARY_EXAMPLES=250 SHMAP_EAGER_EXAMPLES=50 \
	  SHMAP_OVERLAP_EXAMPLES=50 SHMAP_UNJIT_EXAMPLES=50 SHMAP_NAMED_EXAMPLES=50 \
	  SHMAP_PROPERTY_SEED=$(SEED) \
	  $(BIN)/python -m pytest -n auto --dist worksteal $(RANDOM_TESTS)

slow: $(VENV)/.with-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not long" --cpu-times=cpu-times.json

test-long: $(VENV)/.with-test
	SHMAP_PROPERTY_EXAMPLES=20000 SHMAP_LIBRARY_EXAMPLES=20000 SHMAP_OVERLAP_EXAMPLES=2000 \
	  SHMAP_UNJIT_EXAMPLES=2000 SHMAP_NAMED_EXAMPLES=2000 \
	  $(BIN)/python -m pytest -n auto --dist worksteal

# Every pass on every example; the check for hangs on random programs; wrong modules.
validate: $(VENV)/.with-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m long test/simulate

# Plants the mistakes of test/mutants/*.toml one by one and reports those that no test notices.
mutants: $(VENV)/.with-test
	$(BIN)/python test/mutants/run.py

# No traceback, hang or death; of the findings it prints the modules and commands.
fuzz: $(VENV)/.with-test
	$(BIN)/python test/fuzzing/run.py --modules 10000 --seconds 3600

# In an environment of its own: a CUDA plugin without the libraries of CUDA complains wherever JAX
# starts.
test-gpu-compiler:
	$(MAKE) VENV=$(VENV)-gpu $(VENV)-gpu/.with-gpu
	$(VENV)-gpu/bin/python -m pip install --quiet 'pytest>=8'
	$(VENV)-gpu/bin/python -m pytest -k gpu test/targets/test_targets.py test/explain/test_explain.py \
	  test/stages/test_overlap.py test/xmap/test_xmap_lower.py test/end_to_end/test_memory_kinds.py

docs: $(VENV)/.with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

first-hour:
	$(PYTHON) test/project/first_hour.py

lint: $(VENV)/.with-test .typing/shmap_passes .typing/shmap_tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# An environment with the extra `demo`, `test` or `docs` of pyproject.toml.
$(VENV)/.with-%: pyproject.toml $(VENV)/.jax
	$(BIN)/python -m pip install --quiet --editable '.[$*]' $(if $(JAX),'$(JAX)')
	touch $@

# Changes whenever the environment is new or JAX is another one than before.
$(VENV)/.jax: FORCE
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo '$(JAX)' | cmp --silent - $@ || echo '$(JAX)' > $@
FORCE:

# Pyright reads sources only, and these packages are installed under other names than their folders.
.typing/shmap_%:
	mkdir -p .typing
	ln -sfn ../$* $@

clean:
	rm -rf .venv* .typing build site *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
