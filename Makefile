# `make demo` and `make test` need Python (3.11 or newer, with venv) and make, nothing else: everything goes into .venv.
#
#   make test PYTHON=python3.12         another Python, for a fresh .venv
#   make test TORCH='torch==2.13.0'     another torch, or its pip options; `make clean` first if one is installed

PYTHON ?= python3
TRY    ?= $(PYTHON)
TORCH  ?= torch==2.13.0
WORKERS ?= 3
TRIALS  ?= 1

BIN   := .venv/bin
DEMO_STAMP := .venv/.installed-demo
FAST_STAMP := .venv/.installed-fast
STAMP := .venv/.installed
IN_PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
FORMATS_BIN   := .venv-formats/bin
FORMATS_STAMP := .venv-formats/.installed
PUBLIC := .venv-peers/public
PUBLIC_STAMP := $(PUBLIC)/.installed
SUITE := .venv-peers/torchcodec-suite
SUITE_COMMIT := 8da99030d7d71d20e809acc273cbf9627bbbe0aa
POSE_BIN   := .venv-pose/bin
POSE_STAMP := .venv-pose/.installed
CLIPS := .clips
TESTS_OF_SHAPE := tests/test_layers.py tests/test_firewalls.py tests/test_words.py
# Some files of each area, which need ffmpeg, no other program, and few packages
FAST := $(TESTS_OF_SHAPE) tests/test_errors.py tests/test_public_api.py tests/config tests/index \
	$(patsubst %,tests/cli/test_%.py,cli habits) \
	$(patsubst %,tests/engine/test_%.py,engine_choice pool run_progress) \
	$(patsubst %,tests/features/test_%.py,features flow mel row_clock) \
	$(patsubst %,tests/media/test_%.py,container_numbers jpeg mp4_samples sound_chunks) \
	$(patsubst %,tests/building/test_%.py,build merge plan prune tiers) tests/verifying/test_verify.py \
	$(patsubst %,tests/train/test_%.py,clip_samplers collate dataset distributed even_clips loader) \
	tests/read/test_find_video.py tests/sources/test_sources.py \
	$(patsubst %,tests/storage/test_%.py,layout run_log store store_contract typed_lines)

.DEFAULT_GOAL := help
.PHONY: help install demo docs wheel test test-fast test-corpus coverage test-scale test-pose test-formats reliability check format bench bench-loader bench-peers bench-public compare clean tools compiled

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## create .venv with the package and its tools; costs nothing the second time

# torch first and alone: what follows then takes it as it is instead of choosing one with gigabytes of CUDA
$(DEMO_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip install -q -e '.[build,train]'
	@touch $@

$(FAST_STAMP): $(DEMO_STAMP)
	$(BIN)/python -m pip install -q -e '.[build,train,text,test]'
	@touch $@

$(STAMP): $(DEMO_STAMP)
	$(BIN)/python -m pip install -q -e '.[build,train,text,models,dask,ray,docs,dev]'
	@touch $@

demo: $(DEMO_STAMP) ## real footage scanned, cached, verified and fed to a training loop, in demo/
	$(BIN)/python scripts/fetch_clips.py $(CLIPS)
	@mkdir -p demo
	$(BIN)/chordcache scan $(CLIPS) --labels dir -o demo/index.json
	$(BIN)/chordcache build demo/index.json -o demo/cache
	$(BIN)/chordcache verify demo/cache
	$(BIN)/python scripts/train_demo.py demo/cache

test: $(STAMP) tools compiled ## all tests but test-corpus, test-scale, test-pose, test-formats and reliability
	$(BIN)/python -m pytest $(IN_PARALLEL) -m 'not corpus' --ignore tests/scale

test-fast: $(FAST_STAMP) ## some tests of each area, four minutes; they need ffmpeg and no other program
	@command -v ffmpeg >/dev/null || { echo "make test-fast: the tests need ffmpeg" >&2; exit 1; }
	$(BIN)/python -m pytest $(IN_PARALLEL) -m 'not corpus and not slow' $(FAST)

test-corpus: $(STAMP) tools compiled ## the tests of all media in the folder CHORDCACHE_CORPUS
	CHORDCACHE_REQUIRE_CORPUS=1 $(BIN)/python -m pytest $(IN_PARALLEL) -m corpus --ignore tests/scale

coverage: $(STAMP) tools compiled ## `make test`, then the lines of the package that no process ran
	$(BIN)/python -m pip install -q coverage
	$(BIN)/python scripts/line_coverage.py -m pytest $(IN_PARALLEL) -m 'not corpus' --ignore tests/scale

test-scale: $(STAMP) tools compiled ## builds on real clusters of Dask and Ray; TRIALS=20 repeats races and kills, an hour
	TRIALS=$(TRIALS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -rP tests/scale

test-pose: $(POSE_STAMP) tools ## the tests of body landmarks, in .venv-pose
	$(POSE_BIN)/python -m pytest tests/features/pose_landmarks.py

test-formats: $(FORMATS_STAMP) tools ## exports with the libraries that they are for, and object stores with a server of them, in .venv-formats
	$(FORMATS_BIN)/python -m pytest $(IN_PARALLEL) tests/formats/libraries.py tests/formats/object_stores.py tests/formats/object_store_sources.py

$(FORMATS_STAMP): pyproject.toml
	$(PYTHON) -m venv .venv-formats
	$(FORMATS_BIN)/python -m pip install -q $(TORCH)
	$(FORMATS_BIN)/python -m pip install -q -e '.[build,train,formats,store]' 'datasets>=4' 'moto[server]>=5' mlcroissant pillow hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

# Apart, since MediaPipe needs NumPy 1 and Python 3.12 at most
$(POSE_STAMP): pyproject.toml
	$(PYTHON) -m venv .venv-pose
	$(POSE_BIN)/python -m pip install -q -e '.[pose]' hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

reliability: $(STAMP) tools compiled ## kills, full disks, damage, hostile files: an hour, resumes; ARGS=--slice makes a few, ARGS='--trials 20 -k R1.'
	$(BIN)/python scripts/fetch_clips.py $(CLIPS)
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m pytest -v -n auto --maxschedchunk 1 -p fault_injection.results \
		tests/fault_injection/trials.py $(ARGS)

check: $(STAMP) ## format, lint, strict types, layers, words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(TESTS_OF_SHAPE)

docs: $(STAMP) ## the site, in build/docs; a warning of Sphinx, such as a link that leads nowhere, is an error
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "the site: file://$(CURDIR)/build/docs/index.html"

format: $(STAMP) ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: bench-loader ## speed and memory, as ratios within one run; bench-loader is a part of it
	$(BIN)/python bench/bench_spine.py $(CLIPS)
	$(BIN)/python bench/bench_features.py $(CLIPS)
	$(BIN)/python bench/bench_checks.py $(CLIPS)
	$(BIN)/python bench/bench_sources.py $(CLIPS)
	$(BIN)/python bench/bench_tiers.py $(CLIPS)
	$(BIN)/python bench/bench_parts.py $(CLIPS)
	$(BIN)/python bench/bench_estimate.py $(CLIPS)
	$(BIN)/python bench/bench_packs.py $(CLIPS)
	$(BIN)/python bench/scale.py $(CLIPS)/animation/bigbuckbunny.mp4
	$(BIN)/python bench/bench_report.py $(CLIPS)

bench-loader: $(STAMP) ## the loaders against a hand-written dataset, a bare decoding loop and LitData
	$(BIN)/python scripts/fetch_clips.py $(CLIPS)
	$(BIN)/python -m pip install -q boto3 lightning-utilities obstore requests tifffile
	$(BIN)/python -m pip install -q --no-deps litdata  # its torchvision would bring another torch
	$(BIN)/python bench/bench_hand_written.py $(CLIPS)
	$(BIN)/python bench/bench_loader.py $(CLIPS) --runs 7

bench-peers: $(STAMP) ## the same clips through other libraries, each in an environment of its own in .venv-peers
	$(BIN)/python scripts/fetch_clips.py $(CLIPS)
	@for list in bench/peers/*.txt; do \
		name=$$(basename $$list .txt); place=.venv-peers/$$name; \
		[ -f $$place/.installed ] && continue; echo "installing $$name"; \
		$(PYTHON) -m venv $$place && $$place/bin/python -m pip install -q -r $$list && touch $$place/.installed \
			|| { echo "$$name cannot be installed"; rm -rf $$place; }; \
	done
	$(BIN)/python bench/peers.py $(CLIPS)

bench-public: $(PUBLIC_STAMP) $(SUITE)/.git/FETCH_HEAD ## torchcodec's own benchmark of decoders, and episodes as LeRobot stores them, with rows of chordcache
	PYTHONPATH=$(SUITE)/benchmarks/decoders $(PUBLIC)/bin/python bench/public_suite.py
	$(PUBLIC)/bin/python bench/robot_episodes.py

$(PUBLIC_STAMP): pyproject.toml
	$(PYTHON) -m venv $(PUBLIC)
	$(PUBLIC)/bin/python -m pip install -q $(TORCH)
	$(PUBLIC)/bin/python -m pip install -q -e '.[build,train]' torchcodec==0.13 decord gym-pusht matplotlib pandas pylance
	@touch $@

$(SUITE)/.git/FETCH_HEAD:
	git init -q $(SUITE)
	git -C $(SUITE) fetch -q --depth 1 https://github.com/meta-pytorch/torchcodec $(SUITE_COMMIT)
	git -C $(SUITE) checkout -q FETCH_HEAD

compare: $(STAMP) compiled ## CPU time of another commit and of this one: make compare BASE=<commit>
	$(BIN)/python scripts/fetch_clips.py $(CLIPS)
	git worktree add --detach .base $(BASE)
	$(BIN)/python -m compileall -q .base/chordcache
	$(BIN)/python bench/compare_commits.py .base $(CLIPS); git worktree remove --force .base

wheel: $(STAMP) ## build wheel and sdist into dist/, and try the wheel in an empty environment: make wheel TRY=python3.13
	$(BIN)/python scripts/fetch_clips.py $(CLIPS)
	rm -rf dist .venv-wheel
	$(BIN)/python -m pip install -q build twine
	$(BIN)/python -m build --no-isolation >/dev/null
	$(BIN)/python -m twine check --strict dist/*
	$(TRY) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install -q "$$(echo dist/*.whl)[build]"
	cd .venv-wheel && bin/chordcache scan $(CURDIR)/$(CLIPS) --labels dir && bin/chordcache build -c flow \
		&& bin/chordcache build --features mel && bin/chordcache verify && bin/chordcache show cache bikes

clean: ## remove .venv, the demo and the caches of the tools
	rm -rf .venv .venv-pose .venv-peers .venv-formats .venv-wheel dist build demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The tests start thousands of processes, each of which would compile the package again where Python may not store its bytecode
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q chordcache

# The tests compare with ffmpeg's command line tools, cut builds short with strace and faketime, press TAB in bash, zsh and
# fish, read HDF5 with h5dump, and look at pages in a browser. OpenCV's packages with windows need libGL and GLib. The package
# itself needs none of this. bindfs shows one folder as two disks whose locks do not know each other
tools:
	@missing=; for program in ffmpeg strace faketime bash zsh fish bindfs chromium-headless-shell; do \
		command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	command -v h5dump >/dev/null || missing="$$missing hdf5-tools"; \
	libraries=$$(ldconfig -p); \
	case $$libraries in *libGL.so.1*) ;; *) missing="$$missing libgl1" ;; esac; \
	case $$libraries in *libgthread-2.0.so.0*) ;; *) missing="$$missing libglib2.0-0" ;; esac; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "apt-get install$$missing  (the tests need it)"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; \
	else \
		echo "make test: the tests need these packages; install them, for example 'sudo apt-get install$$missing'" >&2; \
		exit 1; \
	fi
