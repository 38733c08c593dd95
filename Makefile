# Two commands do all of their own set-up: `make run` and `make test`. `make help` lists the others.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCAL := HUB_LOCAL=1
ARGS ?=
PATHS := conftest.py manage.py hub integrations tests $(wildcard bench)
# Checks leave nothing behind, least of all in .hub.
SCRATCH := scratch=`mktemp -d`; trap 'rm -rf "$$scratch"' EXIT;
# What a production host sets. The keys are for this check alone, the server is never reached.
PRODUCTION := HUB_LOCAL=0 HUB_ALLOWED_HOSTS=hub.example EMAIL_URL=smtp://mail.example:25 \
	DATABASE_URL=postgresql://hub@127.0.0.1:9/hub \
	HUB_SECRET_KEY=for-make-check-alone-0123456789-abcdefghijklmnopqrstuvwxyz \
	HUB_CREDENTIAL_KEYS=bWFrZS1jaGVjay1hbG9uZS1ub3QtYS1zZWNyZXQtISE=

.DEFAULT_GOAL := help
.PHONY: help setup run worker test check format docs bench weaknesses lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(STAMP) ## install everything into .venv

$(STAMP): requirements.txt requirements-dev.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no $(PYTHON) here: install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)."; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "The hub needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`. Name another: make PYTHON=python3.12"; \
		exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "Python's venv module is missing: install the package python3-venv (Debian: apt-get install python3-venv)."; \
		exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing the pinned packages into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	@touch $@

run: $(STAMP) ## the demo on this machine: web, worker and stand-in until Ctrl-C
	@$(LOCAL) exec $(BIN)/python manage.py run_local $(ARGS)

worker: $(STAMP) ## workers only, supervised
	@exec $(BIN)/python manage.py hub_run $(ARGS)

# make test T="tests/hub/test_x.py -k word" DB=sqlite|postgresql|both
test: $(STAMP) ## the whole suite on SQLite and PostgreSQL (T=path or options, DB=sqlite)
	@exec $(BIN)/python -m tests.run $(if $(DB),--db $(DB)) $(T) $(ARGS)

check: $(STAMP) ## format, lint, types, Django's checks, missing migrations, docs
	$(BIN)/ruff format --check --quiet --output-format concise $(PATHS)
	$(BIN)/ruff check --quiet --output-format concise $(PATHS)
	@$(SCRATCH) $(LOCAL) HUB_HOME="$$scratch" $(BIN)/mypy
	@$(SCRATCH) export $(LOCAL) HUB_HOME="$$scratch"; \
		$(BIN)/python manage.py check --fail-level WARNING && \
		$(BIN)/python manage.py makemigrations --check --dry-run
	@$(SCRATCH) export $(PRODUCTION) HUB_HOME="$$scratch" HUB_STATIC_ROOT="$$scratch/static"; \
		$(BIN)/python manage.py collectstatic --noinput --verbosity 0 && \
		$(BIN)/python manage.py check --deploy --fail-level WARNING
	@if test -e tests/test_docs.py; then $(MAKE) --no-print-directory docs; fi

format: $(STAMP) ## let ruff format and put right what it can
	$(BIN)/ruff format $(PATHS)
	$(BIN)/ruff check --fix $(PATHS)

docs: $(STAMP) ## what the docs claim, held against the code
	@exec $(BIN)/python -m tests.run --db sqlite tests/test_docs.py $(ARGS)

bench: $(STAMP) ## the goals of the bench beside their rivals; writes bench/latest.json
	@exec $(BIN)/python -m bench $(ARGS)

weaknesses: $(STAMP) ## plant each known weakness and see the suite fail
	@exec $(BIN)/python -m tests.weaknesses $(ARGS)

lock: ## compile the pinned requirements (needs uv)
	uv pip compile --quiet --python-version 3.11 --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" requirements.in -o requirements.txt
	uv pip compile --quiet --python-version 3.11 --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" requirements-dev.in -o requirements-dev.txt

clean: ## remove .venv and caches; .hub (database and keys) stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis staticfiles
