.DEFAULT_GOAL := help
.PHONY: help demo serve test bench prove lint clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1	/'

demo: ## the main job on SQLite (or DATABASE_URL), with a worker and a relay killed, proved at the end
	@sh scripts/demo.sh

serve: ## a worker and the admin site at 127.0.0.1:8000, login printed
	@sh scripts/serve.sh

test: ## everything in short form, on real MySQL, MariaDB, PostgreSQL, SQLite and Redis
	@sh scripts/test.sh

bench: ## measure against hand-written SQL and other queues; writes docs/benchmarks.md
	@sh scripts/bench.sh

prove: ## every promise at full size; writes docs/proof/ (ISSUE=name for one, DB=name on one database)
	@sh scripts/prove.sh "$(ISSUE)" "$(DB)"

lint: ## ruff and mypy
	@sh scripts/lint.sh

clean: ## remove what the other commands made
	rm -rf .venv .venv-6 .python .upstream .venv-bench .servers build dist .pytest_cache .mypy_cache .ruff_cache .demo demo.sqlite3*
