# Sparkpair. `make venv` and `make check` need Python 3.11+ and nothing else; the targets marked "lab"
# need root on Debian and do their own set-up, packages included.

SHELL := /bin/sh
VENV := .venv
PYTHON := $(VENV)/bin/python
# Only what is there: a checkout may be older than a directory named here.
TYPED := $(wildcard contact spec checks facts node operations roles benchmarks)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv discover demo test check tests-of-plans tests-of-the-pair tests-of-its-memory tests-that-wait tests-that-compute lint chaos soak bench-noop bench-copy lab-up lab-down lab-clean lab-ready lock lock-check lock-deps bundle doctor fabric-test verify-deep verify-image image-tests prune rollback remove docs plan status logs

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

venv: ## Make .venv from the lock file (again only when the lock file or the checkout's path changed)
	@set -eu; \
	key=$$( { cat requirements-dev.lock; pwd; } | cksum | tr -c '0-9\n' '-'); \
	stamp=$(VENV)/.from-$$key; \
	if [ -f "$$stamp" ] && $(PYTHON) -c '' 2>/dev/null; then exit 0; fi; \
	choose() { \
	  for candidate in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then echo "$$candidate"; return; fi; \
	  done; \
	}; \
	python=$$(choose); \
	if [ -z "$$python" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "make venv: installing Debian's python3 and python3-venv"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null 2>&1 || { \
	    apt-get update -qq; \
	    apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null; }; \
	  python=$$(choose); \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "make venv: no Python 3.11 or newer with its venv module was found." >&2; \
	  echo "  Debian, Ubuntu: sudo apt-get install python3 python3-venv     macOS: brew install python" >&2; \
	  exit 1; \
	fi; \
	echo "make venv: $(VENV) from requirements-dev.lock with $$python ($$("$$python" -V))"; \
	rm -rf $(VENV); \
	"$$python" -m venv $(VENV); \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	$(PYTHON) -m pip install -q --require-hashes --no-deps -r requirements-dev.lock; \
	$(PYTHON) -m pip install -q --no-deps --no-build-isolation -e .; \
	touch "$$stamp"

# Said once, here, for every target that needs the simulated pair.
lab-ready: venv
	@if [ "$$(id -u)" != 0 ]; then \
	  echo "The lab makes network namespaces, mounts and real hosts, so this target needs root." >&2; \
	  echo "  Run it on a Debian 12 machine as root. For a real pair no root is needed here: see README.md." >&2; \
	  exit 1; fi
	@if ! command -v apt-get >/dev/null; then \
	  echo "The lab is built from Debian's packages, so this target needs a Debian 12 machine (no apt-get found)." >&2; \
	  exit 1; fi

discover: venv ## First contact with your Sparks, the head first: make discover NODES="192.168.1.10 alice@192.168.1.11"
	@if [ -z "$(NODES)" ]; then echo 'make discover: which nodes? make discover NODES="192.168.1.10 192.168.1.11"' >&2; exit 1; fi
	$(PYTHON) discover.py $(ARGS) $(NODES)

demo: lab-ready ## lab: build the simulated pair, converge it, print a chat answer
	$(PYTHON) -m lab demo

test: ## lab: everything in check, then one pass on the simulated pair (at most 30 minutes)
	@set -eu; start=$$(date +%s); \
	$(MAKE) --no-print-directory lab-ready check; \
	checked=$$(date +%s); \
	$(PYTHON) -m lab build; $(PYTHON) -m lab up; \
	up=$$(date +%s); \
	code=0; $(PYTHON) -m pytest tests -m "(lab or slow) and not chaos" -o timeout=1200 --durations=15 || code=$$?; \
	EXAMPLES=100 $(PYTHON) -m pytest -q tests/unit tests/render || code=$$?; \
	end=$$(date +%s); \
	echo "make test: check $$((checked - start)) s, lab built and up $$((up - checked)) s," \
	  "lab pass $$((end - up)) s, in all $$((end - start)) s"; \
	exit $$code

check: venv ## Lint, types and the fast tests: no lab, no root, under a minute
	@set -e; start=$$(date +%s); $(MAKE) --no-print-directory -j6 -Otarget \
	  lint tests-that-compute tests-of-plans tests-of-the-pair tests-of-its-memory tests-that-wait; \
	echo "make check: $$(($$(date +%s) - start)) s"

# Side by side, since some mostly wait: for the deadlines of a pair in memory, or of processes of their own.
PAIR = tests/node/test_pair.py
# By name, in two halves of about the same length: what the keeper remembers, and the rest.
ITS_MEMORY = key or state
OTHERS_THAT_WAIT = tests/node tests/lab
PLANS = tests/plan
tests-of-the-pair: venv
	$(PYTHON) -m pytest -q $(PAIR) -k "not ($(ITS_MEMORY))"

tests-of-its-memory: venv
	$(PYTHON) -m pytest -q $(PAIR) -k "$(ITS_MEMORY)"

tests-that-wait: venv
	$(PYTHON) -m pytest -q --ignore=$(PAIR) $(OTHERS_THAT_WAIT)

tests-of-plans: venv
	$(PYTHON) -m pytest -q $(PLANS)

tests-that-compute: venv
	$(PYTHON) -m pytest -q $(addprefix --ignore=,$(OTHERS_THAT_WAIT) $(PLANS)) tests

lint: venv
	$(PYTHON) -m ruff check --quiet .
	$(PYTHON) -m ruff format --quiet --check .
	$(PYTHON) -m mypy $(TYPED)
	$(PYTHON) -m mypy --python-version 3.10 node

chaos: lab-ready ## lab: the long tables, resumable; results under docs/results/
	$(PYTHON) -m tests.lab.chaos $(ARGS)

soak: lab-ready ## lab: load and faults for an hour, and whether anything of ours grows: make soak ARGS=minutes
	$(PYTHON) -m tests.lab.soak $(ARGS)

bench-noop: lab-ready ## lab: a deploy with nothing to do, over an empty pyinfra deploy
	$(PYTHON) -m tests.lab.bench_noop $(ARGS)

bench-copy: lab-ready ## lab: a copy from node to node beside rsync and scp, link and disks
	$(PYTHON) -m tests.lab.bench_copy $(ARGS)

lab-up: lab-ready ## lab: build and start the simulated pair
	$(PYTHON) -m lab build
	$(PYTHON) -m lab up

lab-down: lab-ready ## lab: stop it; what it built stays
	$(PYTHON) -m lab down

lab-clean: lab-ready ## lab: stop it and remove all that it made
	$(PYTHON) -m lab clean

plan: venv ## What a deploy of inventory.py would change (exits 2 when there is something)
	$(PYTHON) plan.py $(ARGS)

status: venv ## What the pair does, and why
	$(PYTHON) -m pyinfra inventory.py ops/status.py $(ARGS)

# LINES as typed: a terminal may export one of its own.
logs: venv ## All ranks' last lines, merged by time: make logs LINES=200
	SPARKPAIR_ARGS="--lines $(if $(filter command,$(origin LINES)),$(LINES),100)" $(PYTHON) -m pyinfra inventory.py ops/logs.py $(ARGS)

lock: venv ## Write sparkpair.lock: image, weights and drafter to the byte; says what moved
	$(PYTHON) lock.py $(ARGS)

lock-check: venv ## Whether anything moved since the lock was written (exits 2 when it did); writes nothing
	$(PYTHON) lock.py --check $(ARGS)

bundle: venv ## One directory with image, weights and drafter, for a pair without internet: make bundle BUNDLE=/path
	@if [ -z "$(BUNDLE)" ]; then echo "make bundle: which directory shall be made? make bundle BUNDLE=/path" >&2; exit 1; fi
	$(PYTHON) bundle.py $(ARGS) "$(BUNDLE)"

doctor: venv ## Everything that there is to ask of the two nodes, and what to do about what is wrong; changes nothing
	$(PYTHON) doctor.py $(ARGS)

verify-deep: venv ## verify.py, after every byte of weights and drafter was read again on both nodes
	$(PYTHON) verify.py --deep $(ARGS)

fabric-test: venv ## Measure the rails: bandwidth and latency, each and together; refused while the pair serves
	$(PYTHON) fabric_test.py $(ARGS)

verify-image: venv ## Does the image hold by itself what its stack needs? One line for each check
	$(PYTHON) -m pyinfra inventory.py verify_image.py $(ARGS)

image-tests: venv ## Stop the pair, run the engine's own tests in its image, start the pair: make image-tests TESTS=/path/of/checkout
	SPARKPAIR_IMAGE_TESTS="$(TESTS)" $(PYTHON) -m pyinfra inventory.py image_tests.py $(ARGS)

prune: venv ## Show images, layers and parts that nothing needs any more, with their sizes, and remove them when you say so
	$(PYTHON) -m pyinfra inventory.py prune.py $(ARGS)

rollback: venv ## Return the pair to a generation that passed its gates: make rollback ARGS='--data rollback_to=3f2a91c0d7e4'
	$(PYTHON) -m pyinfra inventory.py rollback.py $(ARGS)

remove: venv ## Show what removal takes off the nodes and what stays there, and take it when you say so
	$(PYTHON) -m pyinfra inventory.py remove.py $(ARGS)

docs: venv ## Write the generated pages of docs/ again
	$(PYTHON) -m spec.docs
	$(PYTHON) -m tests.reports

# uv resolves for all of Python 3.11+ and every platform at once, so one lock serves the laptop, the Spark and CI.
# Neither the machine's pip settings nor its own index may leave a trace: hashes are those of the published files.
LOCK = env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL -u UV_INDEX -u UV_FIND_LINKS $(VENV)/lock/bin/uv --no-config pip compile \
  --no-cache --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url
# What a node that downloads gets: one list for every Python from 3.10 on, without conditions, since pip would judge
# those by the Python of the control machine and not by the node's.
HUB_LOCK = $(subst --universal --python-version 3.11,--python-version 3.10 --python-platform aarch64-manylinux_2_28,$(LOCK))
lock-deps: venv ## Resolve the dependencies again (UPGRADE=--upgrade takes newer releases)
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install -q uv
	$(LOCK) $(UPGRADE) pyproject.toml --extra build -o requirements.lock
	$(LOCK) $(UPGRADE) pyproject.toml --extra build --extra dev -c requirements.lock -o requirements-dev.lock
	grep -oE '^(huggingface-hub|hf-xet|httpx)==[^ ]+' requirements.lock >$(VENV)/lock/hub.txt
	$(HUB_LOCK) $(UPGRADE) $(VENV)/lock/hub.txt -o requirements-hub.lock
