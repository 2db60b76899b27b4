# On a new machine, `make run` starts the server and `make test` runs the tests. `make help` lists all commands.

VENV := .venv
PYTHON := $(VENV)/bin/python
WORKERS ?= 3
TEST_TIMEOUT_S ?= 240
TORTURE_TIMEOUT_S ?= 3600
KILLS ?= 1000
SECONDS ?= 3600
STATE ?= .kills
RESTART ?= 0
FAULTS ?= full,slow,kill,stop,clock,unread
IDLE ?= 10000
TOPICS_PER_S ?= 300
# Where the files of `make dist` will be.
DIST_URL ?= file://$(CURDIR)/dist
export CHROMIUM
# The tests start hundreds of interpreters. Each would compile the package again without the bytecode files.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough and has venv; BASE_PYTHON=... overrides the search.
BASE_PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# One stamp file per set of extras: pip runs again only when the dependencies have changed.
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
READY_DOCS := $(VENV)/.ready-docs
# The sync client is generated: an installation does it, and this stamp file does it again when its sources change.
SYNC := $(VENV)/.sync
INSTALL := $(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run test test-core check format torture torture-record kills soak bench demo-pipeline docs site dist pythons screenshots clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PYTHON):
	@test -n "$(BASE_PYTHON)" || { echo "topics needs Python 3.11 or newer with the venv module; install it, or set BASE_PYTHON=/path/to/python" >&2; exit 1; }
	$(BASE_PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(PYTHON)
	@echo "installing topics into $(VENV): about half a minute, once"
	$(INSTALL) -e '.[client,replica]'
	@touch $@

$(READY_DEV): pyproject.toml constraints.txt | $(PYTHON)
	@echo "installing topics, Spark and the tools for tests into $(VENV): about 1 GB, once"
	$(INSTALL) -e '.[spark,dev]'
	@touch $@ $(READY)

$(READY_DOCS): pyproject.toml constraints.txt | $(PYTHON)
	$(INSTALL) -e '.[docs]'
	@touch $@ $(READY)

$(SYNC): tools/unasync.py $(shell find src/topics/client/_async -name '*.py') | $(PYTHON)
	$(PYTHON) tools/unasync.py
	@touch $@

install: $(READY_DEV) $(SYNC) ## create the environment with everything for tests and checks

run: $(READY) $(SYNC) ## start the server on 127.0.0.1:4000 with its data in ./data
	TOPICS_DATA_DIR="$${TOPICS_DATA_DIR-./data}" exec $(VENV)/bin/topics serve

test: $(READY_DEV) $(SYNC) ## run all tests except the long ones
	@for b in $(CHROMIUM) chromium chromium-browser google-chrome google-chrome-stable none; do \
		command -v $$b >/dev/null && break; \
		test $$b != none || echo "no Chromium found: the browser tests are skipped; set CHROMIUM=/path/to/chromium to run them"; done
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup --timeout $(TEST_TIMEOUT_S) --durations 15

# Without a JVM and a browser: the model, the engine, its storage, and the API over a real socket.
CORE := model engine queues routers consumers storage/log storage/segments contract live

test-core: $(READY_DEV) $(SYNC) ## run the tests of the engine and its API, about a minute and a half: for daily work
	$(PYTHON) -m pytest -q -n $(WORKERS) --dist loadgroup --timeout $(TEST_TIMEOUT_S) $(addprefix tests/,$(CORE))

check: $(READY_DEV) $(SYNC) site ## check format, lint, types, import contracts and the links of the site, and run the tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup --timeout $(TEST_TIMEOUT_S) --durations 15

format: $(READY_DEV) $(SYNC) ## format the code and fix lint errors
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

torture: $(READY_DEV) $(SYNC) ## run the long tests, about an hour; resumes, FRESH=1 starts again, TORTURE=all runs everything
	$(PYTHON) -m pytest -p tests.torture --torture-state .torture $(if $(FRESH),--torture-fresh) \
		-q -m torture -n $(WORKERS) --dist loadgroup --max-worker-restart 0 \
		--timeout $(TORTURE_TIMEOUT_S) $(ONLY)

torture-record: $(READY_DEV) $(SYNC) ## write to tests/torture.json which long tests have passed with this code
	$(PYTHON) -m tests.torture .torture

kills: $(READY_DEV) $(SYNC) ## kill the server under load repeatedly; KILLS=1000 SECONDS=3600 STATE=.kills
	$(PYTHON) -m tests.faults.kills.run $(STATE) --kills $(KILLS) --seconds $(SECONDS)

soak: $(READY_DEV) $(SYNC) ## load a server with everything at once and check every answer; SECONDS=3600, RESTART=300 also kills it at intervals, FAULTS= injects no faults
	$(PYTHON) -m tests.faults.soak .soak --seconds $(SECONDS) --restart $(RESTART) --faults "$(FAULTS)" --idle $(IDLE) --topics-per-s $(TOPICS_PER_S)

bench: $(READY_DEV) $(SYNC) ## run the benchmarks against their peers; ONLY=w4 runs one row
	$(PYTHON) bench/run.py $(if $(ONLY),--only $(ONLY))

demo-pipeline: $(READY_DEV) $(SYNC) ## demonstrate archive, eviction, healing and audit; draws demo-pipeline.svg
	$(PYTHON) demo/pipeline.py

docs: $(READY) $(SYNC) ## regenerate the generated pages
	$(PYTHON) -m tools.docs.configuration > docs/configuration.md
	$(PYTHON) -m tools.docs.formats > docs/formats.md
	$(PYTHON) -m tools.docs.errors > docs/guide/errors.md
	$(PYTHON) -m tools.docs.names > docs/guide/client-names.md
	$(PYTHON) -m tools.docs.reference docs/reference
	$(PYTHON) -m tools.docs.openapi > src/topics/server/api/openapi.json

site: $(READY_DOCS) $(SYNC) ## build the documentation as a static site in build/site; broken links fail
	$(PYTHON) tools/site/build.py

dist: $(READY_DEV) $(SYNC) ## build wheel, sdist, npm package, image and formula in dist/, and try them; BASE=layout of python:3.12-slim
	rm -rf dist
	$(PYTHON) -m build --no-isolation --outdir dist .
	npm pack --silent --pack-destination dist ./clients/js
	$(PYTHON) -m tools.image.build dist/*.whl dist/image $(if $(BASE),--base $(BASE))
	$(PYTHON) tools/formula.py dist/*.tar.gz --url $(DIST_URL) > dist/topics-engine.rb
	$(PYTHON) tools/smoke.py dist/*.whl dist/*.tar.gz dist/*.tgz
	$(PYTHON) -m tools.image.smoke dist/image

pythons: $(READY_DEV) $(SYNC) ## build the wheel, and try it on every Python from 3.11 on that is found
	rm -rf dist
	$(PYTHON) -m build --no-isolation --wheel --outdir dist .
	$(PYTHON) tools/smoke.py --every-python dist/*.whl

screenshots: $(READY_DEV) $(SYNC) ## take the pictures of the console in README.md, from the demo
	$(PYTHON) tools/console_shots.py

clean: ## remove the environment and caches, but not ./data
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
