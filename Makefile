# Everything runs from a bare clone: the first target that needs it sets up .venv.
PYTHON ?= python3
BIN := .venv/bin
RECIPE ?= configs/dit_pixel_faces.py
WORKDIR ?= runs/$(basename $(notdir $(RECIPE)))

.PHONY: setup dev train test test-all fmt lint types smoke bench torture

setup: .venv/installed
dev: .venv/installed-dev

.venv/installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[avatars]'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

train: setup
	$(BIN)/tinygen train --config=$(RECIPE) --workdir=$(WORKDIR)
	$(BIN)/tinygen sample --ckpt=$(WORKDIR) --num=72
	@echo "Look at $(WORKDIR)/sampled/*/grid.png, and at $(WORKDIR)/samples/ for how it learned."

test: dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow"

# Besides: whole runs in processes of their own, every recipe's :smoke, a wheel that is built and installed
test-all: test
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m slow

fmt: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: dev
	$(BIN)/pyright

LATENT := configs/microdit_xl_latent.py
smoke: setup
	place=$$(mktemp -d) && for recipe in $(filter-out $(LATENT), $(wildcard configs/*.py)); do \
	  $(BIN)/tinygen train --config=$$recipe:smoke --workdir=$$place/$$(basename $$recipe .py) || exit 1; done && \
	$(BIN)/python scripts/prepare/prepare_latents.py --config=configs/autoencoder_avatars.py:smoke \
	  --autoencoder=$$place/autoencoder_avatars --out=$$place/latents && \
	$(BIN)/tinygen train --config=$(LATENT):smoke --config.data.path=$$place/latents --workdir=$$place/microdit_xl_latent

bench: setup
	$(BIN)/python scripts/bench/bench.py products --seconds=3
	$(BIN)/python scripts/bench/bench.py step --rounds=4
	$(BIN)/python scripts/bench/bench.py loop

torture: setup
	$(BIN)/python scripts/torture/torture.py kills
	$(BIN)/python scripts/torture/torture.py two
	$(BIN)/python scripts/torture/torture.py faults
