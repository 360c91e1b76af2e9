# Every verb does its own set-up. The logic is in scripts/ and in the binary.

.PHONY: run test check faults gen bench clean help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Start the whole platform on private servers, until Ctrl-C
	@scripts/run

test: ## Run every test and doc test against real servers
	@scripts/test

check: ## Formatting, lints, dependencies, documentation, tidiness, stale generated files
	@scripts/check

faults: ## The fault tests at full length: outages of minutes, a hundred kills
	@scripts/faults

gen: ## Write generated files again (.sqlx)
	@scripts/gen

bench: ## Measure against peers and plain SQL, on private servers that sync to disk
	@scripts/bench

clean: ## Remove build output and the private servers' data
	@scripts/clean
