.DEFAULT_GOAL := help
.PHONY: help demo serve venv quick check test test-all test-map lint docs bench bench-check prove chaos proofs screenshots release-check clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1 	/'

demo: ## the main job in a new SQLite file (or beside DATABASE_URL), a worker and a relay killed, an outage, proved in one to two minutes
	@sh scripts/demo.sh

serve: ## a worker and the admin site at 127.0.0.1:8000 (PORT=8001), with 200 sample jobs; login printed
	@PORT="$(PORT)" sh scripts/serve.sh

venv: ## .venv with all that needs no C compiler: SQLite and PostgreSQL, the tests, ruff and mypy
	@sh scripts/check.sh venv

quick: ## while you work: format, lint, plain code, and the tests of the rooms that you have changed, on SQLite
	@sh scripts/check.sh quick

check: ## before each commit: format, lint, types, plain code and the verbs on SQLite
	@sh scripts/check.sh

test: ## the short run on real MySQL, MariaDB, PostgreSQL, SQLite and Redis (DB=mysql: all of it on one of them)
	@sh scripts/test.sh $(if $(DB),--db $(DB))

test-all: ## all tests on all databases and both Djangos: at the end of an issue, and before a release
	@sh scripts/test.sh --all

test-map: ## renew the map of statements by which the short run is chosen (TESTS=tests/gates: what these tests send)
	@sh scripts/test.sh --map $(TESTS)

lint: ## ruff, mypy, and whether a migration is missing
	@sh scripts/lint.sh

docs: ## the pages as a site with search, in .site: open .site/index.html, no server needed
	@sh scripts/docs.sh

bench: ## measure against hand-written SQL and other queues; writes docs/benchmarks.md
	@sh scripts/bench.sh

bench-check: ## three minutes: enqueue and drain compared with main (BASE=commit DB=mysql); fails after a loss over 5 %
	@BASE="$(BASE)" DB="$(DB)" sh scripts/bench_check.sh

prove: ## every promise at full size, in six hours at most; writes docs/proof/ (ISSUE=name for one page, DB=name on one database)
	@sh scripts/prove.sh "$(ISSUE)" "$(DB)"

chaos: ## kills, freezes, cuts and outages at once, from a seed; all promises must hold (SEED=7 DB=mysql FOR=30s REDUCE=yes)
	@SEED="$(SEED)" DB="$(DB)" FOR="$(FOR)" ONLY="$(ONLY)" REDUCE="$(REDUCE)" sh scripts/chaos.sh

proofs: ## each page of evidence and each figure in the docs; fails if one is stale
	@sh scripts/proofs.sh

screenshots: ## the pictures of the admin in docs/img, taken by a headless Chromium over a demo shop (ONLY=jobs,job)
	@sh scripts/screenshots.sh $(if $(ONLY),--only $(ONLY))

release-check: ## the same, and fail if one is missing too
	@sh scripts/proofs.sh --release

clean: ## remove what the other commands made
	rm -rf .venv .venv-6 .python .upstream .venv-bench .venv-import .venv-rivals .servers .site build dist .pytest_cache .mypy_cache .ruff_cache .demo demo.sqlite3*
