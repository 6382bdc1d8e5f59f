# The two commands of the README are `make quickstart` and `make test`; the rest is for development.
PRESET ?= release
JOBS   ?= $(shell nproc)
# The GPU is built where nvcc is found; ON wants it, OFF leaves it.
CUDA   ?= AUTO
# A quarter of the tests' time is waiting: for a process to end, for a deadline to pass.
TEST_JOBS ?= $(shell echo $$(($(JOBS) + $(JOBS) / 2)))

.PHONY: all setup build package wheel site quickstart smollm2 test update-golden check clean

all: build

setup:
	@scripts/setup.sh

build: setup
	@cmake --preset $(PRESET) -DTAILRACE_ISAS=all -DTAILRACE_CUDA=$(CUDA) >/dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS)

# Only the binary: tests and benches are not needed to run it. The first time it is for this machine's
# CPU alone, which spares a tenth of the time and what nvcc takes; 'make build' adds the rest.
build/tailrace: setup
	@cmake --preset release $(if $(wildcard build/CMakeCache.txt),,-DTAILRACE_ISAS=native -DTAILRACE_CUDA=OFF) >/dev/null
	@cmake --build --preset release -j $(JOBS) --target tailrace

quickstart: build/tailrace
	build/tailrace launch configs/quickstart.yaml

# build/package: a .deb, and a .tar.gz that brings its libraries along.
package: setup
	@cmake --preset release -DTAILRACE_ISAS=all -DTAILRACE_CUDA=$(CUDA) >/dev/null
	@cmake --build --preset release -j $(JOBS) --target tailrace
	cd build && cpack -B package
	@ls -l build/package/*.deb build/package/*.tar.gz

# build/package/tailrace-*.whl: the archive as a wheel for pip (docs/python.md).
wheel: package
	python3 python/wheel_backend.py

# build/site/index.html: the pages of this clone, for a browser.
site:
	@scripts/setup.sh pandoc
	@python3 scripts/make_site.py

# A real instruct model, fetched, imported and post-trained on this machine.
smollm2: build/tailrace
	@scripts/smollm2.sh
	build/tailrace launch configs/smollm2.yaml

.PHONY: build/tailrace

test: build
	ctest --test-dir build --output-on-failure -j $(TEST_JOBS) --no-tests=error -LE long || \
	  { scripts/failed_tests.sh; exit 1; }

# Writes what the golden tests give now; read the difference before you commit it.
update-golden: build
	find tests/golden -name "*.txt" ! -path "*/events/*" -delete
	cmake --build --preset $(PRESET) -j 1 --target update-golden
	git status --short tests/golden

# Long tests, mutants of the CUDA kernels and of the scheduler, the budget of the build, and sanitizer builds; slow, run before a larger change lands.
check: test
	cmake --build --preset $(PRESET) -j $(JOBS) --target long_tests
	ctest --test-dir build --output-on-failure -L long
	scripts/cuda_mutants.sh
	scripts/decide_mutants.sh
	scripts/build_budget.sh
	$(MAKE) build PRESET=asan
	cmake --build --preset asan -j $(JOBS) --target long_tests
	ctest --test-dir build/asan --output-on-failure -j $(JOBS) -LE "long|e2e"
	$(MAKE) build PRESET=tsan
	ctest --test-dir build/tsan --output-on-failure -j $(JOBS) -LE "long|e2e"

clean:
	rm -rf build
