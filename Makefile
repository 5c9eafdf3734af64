# The front door: every command a reader types. `make` alone lists them.
# GNU make 3.81 (macOS ships it) and 4.x, with any POSIX sh; nothing newer is used.

# Options of the commands, e.g.  make generate PROMPT="It's late" MODEL=tiny ARGS="--seed 3".
# Assigned here, so that a variable of the same name in the environment (zsh has a PROMPT) is not taken for one.
PROMPT =
MODEL =
ARGS =
N =

# A prompt reaches the program through the environment: $(value …) takes it as it was typed, without make reading
# its $, and the recipe quotes the shell variable, so that quotes and spaces survive as well.
export TYPED_PROMPT := $(value PROMPT)
export TYPED_MODEL := $(value MODEL)
typed = $(if $(filter command,$(origin PROMPT)),--prompt="$$TYPED_PROMPT") $(if $(TYPED_MODEL),--model="$$TYPED_MODEL")
unexport PROMPT MODEL ARGS N

# With PYTHON=… that interpreter runs everything: no .venv, no pip, no network, and the caller's PYTHONPATH stays.
# Without it .ci/environment.py makes .venv, once, and remakes it when the pins change. $(call ready,LEVEL,MODULES)
# comes first in a recipe: LEVEL is what .venv must hold (base or full), MODULES is what a given PYTHON must have.
at_least = -c 'import sys; sys.exit(sys.version_info < ($(1), $(2)))' 2>/dev/null
ifeq ($(strip $(PYTHON)),)
  PY := .venv/bin/python
  BARE := python3
  CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14
  ready = for python in $(CANDIDATES); do $$python $(call at_least,3,11) && break; done || { echo 'make: Python 3.11 or newer is needed, and none of $(CANDIDATES) is one: install it from your package manager or from python.org.' >&2; exit 1; }; $$python .ci/environment.py $(1)
  export PYTHONPATH := $(CURDIR):$(CURDIR)/kernels
else
  PY := "$(PYTHON)"
  BARE := $(PY)
  ready = $(PY) $(call at_least,3,11) || { echo 'make: PYTHON must be an interpreter of Python 3.11 or newer, and this is none: $(PYTHON)' >&2; exit 1; }; $(PY) .ci/environment.py check $(2)
  export PYTHONPATH := $(CURDIR):$(CURDIR)/kernels$(if $(PYTHONPATH),:$(PYTHONPATH))
endif

# OpenMP threads that wait sleep: spinning ones steal the cores of whatever else runs (a decode step of the tiny model
# took 16 to 44 ms instead of 5.8 ms on a busy machine), and a quiet machine is no slower for it.
export OMP_WAIT_POLICY ?= passive

COMMANDS := help setup generate chat drop-in quality-gate cache-gate bench-e2e test test-chapter bench-chapter notebook-chapter \
            exercise lab docs docs-serve doctor lint clean
.PHONY: $(COMMANDS)

# `make test-chapter 3`: the words that are no commands become N, and goals that do nothing.
WORDS := $(filter-out $(COMMANDS),$(MAKECMDGOALS))
ifneq (,$(filter %-chapter exercise,$(MAKECMDGOALS)))
  ifeq ($(origin N),file)
    N := $(WORDS)
  endif
  ifneq (,$(WORDS))
    .PHONY: $(WORDS)
    $(WORDS): ; @:
  endif
endif

# 3, 03, ch03 and ch03_swiglu (with or without chapters/ before it, as the shell completes it) name one chapter.
CHAPTERS := $(sort $(patsubst chapters/%/,%,$(filter %/,$(wildcard chapters/ch[0-9][0-9]_*/))))
NAME := $(patsubst ch%,%,$(patsubst chapters/%,%,$(patsubst %/,%,$(subst %,?,$(N)))))
CHAPTER := $(filter ch$(NAME) ch$(NAME)_% ch0$(NAME) ch0$(NAME)_%,$(CHAPTERS))
need_chapter = $(if $(filter 1,$(words $(CHAPTER))),,@printf '%s\n' 'usage: make $@ N    where N names one chapter: 1, 01 or its full name' 'chapters: $(CHAPTERS)' >&2; exit 2)
need_file = $(if $(wildcard chapters/$(CHAPTER)/$(1)),,@echo 'make $@: chapters/$(CHAPTER) has no $(1).' >&2; exit 2)

help:
	@awk -F '## ' '/^[a-z0-9-]+:.*## / { split($$1, t, ":"); split($$2, d, " \\| "); printf "  make %-19s %s\n", t[1] " " d[1], d[2] }' Makefile
	@echo '  PYTHON=python3 after any of them uses that interpreter: no .venv, no network.'

setup: ##  | make .venv with all that the commands below need, or bring it up to date
	@$(call ready,full)

generate: ##  | write text with Qwen3: PROMPT="..." MODEL=tiny ARGS="--seed 3 --temperature 0.8"
	@$(call ready,base,torch transformers rich typer)
	@$(PY) -m chapters.ch11_generator $(typed) $(value ARGS)

chat: ##  | talk with Qwen3; PROMPT=... MODEL=... ARGS=... as above
	@$(call ready,base,torch transformers rich typer)
	@$(PY) -m chapters.ch11_generator --interactive $(typed) $(value ARGS)

drop-in: ##  | our operators in a Hugging Face model, checked, timed: MODEL=tiny ARGS=...
	@$(call ready,full,torch transformers rich)
	@$(PY) -m chapters.ch03_swiglu.drop_in $(if $(TYPED_MODEL),--model="$$TYPED_MODEL") $(value ARGS)

quality-gate: ##  | whether int8 weights change a model's answers: MODEL=tiny ARGS="--layers all"
	@$(call ready,base,torch tokenizers rich)
	@$(PY) -m chapters.ch08_w8a16_head.quality_gate $(if $(TYPED_MODEL),--model="$$TYPED_MODEL") $(value ARGS)

cache-gate: ##  | whether an FP8 or FP4 KV cache does: MODEL=tiny ARGS="--kv-cache nvfp4"
	@$(call ready,base,torch tokenizers rich)
	@$(PY) -m chapters.ch10_quantized_kv.cache_gate $(if $(TYPED_MODEL),--model="$$TYPED_MODEL") $(value ARGS)

bench-e2e: ##  | time whole requests beside other engines: MODEL=... ARGS="--contexts 128"
	@$(call ready,full,torch transformers rich)
	@$(PY) -m chapters.ch11_generator.benchmark $(if $(TYPED_MODEL),--model="$$TYPED_MODEL") $(value ARGS)

# The files of the tests run side by side where pytest-xdist is installed; qwen_cuda.testing.workers says in how many
# processes, ARGS="-n 0" in none but one.
test: ##  | run all tests, as CI does; ARGS="-k rope" chooses
	@$(call ready,full,torch transformers hypothesis pytest)
	@$(PY) -m pytest $$($(PY) -c 'import xdist' 2>/dev/null && echo --numprocesses auto --dist loadfile) $(value ARGS)

test-chapter: ## N | run the tests of one chapter, e.g. make test-chapter 1
	$(need_chapter)
	@$(call ready,full,torch transformers hypothesis pytest)
	@$(PY) -m pytest chapters/$(CHAPTER) $(value ARGS)

bench-chapter: ## N | run the benchmark of one chapter on this machine
	$(need_chapter)
	$(call need_file,benchmark.py)
	@$(call ready,full,torch transformers)
	@$(PY) -m chapters.$(CHAPTER).benchmark $(value ARGS)

notebook-chapter: ## N | execute the lab of one chapter; the executed copy lies in build/notebooks
	$(need_chapter)
	$(call need_file,notebook.py)
	@$(call ready,full,torch jupytext nbclient ipykernel matplotlib)
	@$(PY) docs/hooks/notebooks.py run $(CHAPTER)
	@echo build/notebooks/$(CHAPTER)/*.ipynb

# The chapter's own tests, on the learner's file: QWEN_EXERCISE tells them to load it.
exercise: ## N | check your solution of a chapter's exercise (from chapter 2 on)
	$(need_chapter)
	$(if $(filter ch01_%,$(CHAPTER)),@echo 'make exercise: chapter 1 has no exercise; they begin with chapter 2.' >&2; exit 2)
	$(call need_file,exercise)
	@$(call ready,full,torch transformers hypothesis pytest)
	@QWEN_EXERCISE=$(CHAPTER) $(PY) -m pytest -x chapters/$(CHAPTER) $(value ARGS)

lab: ##  | open the chapters in JupyterLab
	@$(call ready,full,jupyterlab jupytext ipykernel)
	@$(PY) -m jupyterlab --notebook-dir=chapters $(value ARGS)

# MkDocs wants its folder of pages before the hook fills it. Never add -q or -v: --strict then counts no warnings.
docs: ##  | build the site into build/site
	@$(call ready,full,torch mkdocs material mkdocstrings jupytext nbclient ipykernel matplotlib)
	@$(PY) docs/hooks/notebooks.py sync
	@mkdir -p build/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(value ARGS)

docs-serve: ##  | serve the site on http://127.0.0.1:8000 and follow your edits
	@$(call ready,full,torch mkdocs material mkdocstrings jupytext nbclient ipykernel matplotlib)
	@$(PY) docs/hooks/notebooks.py sync
	@mkdir -p build/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --livereload -a 127.0.0.1:8000 $(value ARGS)

# The one command that goes on when .venv cannot be made: it is there to say why. Any Python from 3.9 on can run it.
doctor: ##  | say what works on this machine, and how to mend what does not; also ARGS=--json
	@if ($(call ready,full)); then exec $(PY) -m qwen_cuda.doctor $(value ARGS); fi; \
	 $(BARE) $(call at_least,3,9) && $(BARE) -m qwen_cuda.doctor $(value ARGS)

lint: ##  | check style and types: ruff, mypy, clang-format
	@$(call ready,full,ruff mypy clang_format)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@find kernels chapters \( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h' \) -exec $(PY) -c 'from clang_format import clang_format; clang_format()' --dry-run --Werror {} +

clean: ##  | remove what these commands wrote, except .venv
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name .venv -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
	@echo 'clean. The environment stays; to remove it too: rm -r .venv'
