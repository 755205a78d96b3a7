# SPDX-License-Identifier: Apache-2.0
# Short names for what scripts/ does. CMake is the build system: see CMakePresets.json for its presets.
.DEFAULT_GOAL := help
.PHONY: help build demo test test-all bench peers-venv pack install mutants clean

PREFIX ?= /usr/local
TRACE ?= data/smollm2-135m.safetensors
# Folders that this file makes; other build-* folders are their owner's.
BUILD_FOLDERS := build build-debug build-asan build-tsan build-fuzz build-aarch64 build-mutants

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: ## installs what is missing, builds the libraries and the program build/tegula
	@scripts/bootstrap.sh
	@scripts/build.sh release tegula tegula_static tegula_cli

demo: build ## replays a recorded trace of a real model through a paged cache
	@build/tegula replay $(TRACE)

test: ## builds and tests, without Python (<= 10 minutes on 2 cores)
	@scripts/bootstrap.sh test
	@scripts/test.sh

test-all: ## what make test leaves out: sanitizers, fuzzing, aarch64, Python tools
	@scripts/bootstrap.sh all
	@scripts/test_all.sh

install: build ## installs into PREFIX (default /usr/local; DESTDIR is honoured)
	cmake --install build --prefix $(PREFIX)

bench: ## builds the benchmark programs, build/bench/*
	@scripts/bootstrap.sh bench
	@scripts/build.sh bench tegula_bench

peers-venv: build ## builds, and makes build/venv-peers with PyTorch for bench/peers_cpu.py
	@scripts/bootstrap.sh python
	@scripts/venv.sh build/venv-peers bench/requirements-peers.txt

pack: build ## builds, and compiles the CUDA kernels into build/sm_90a.tegpack, which the program finds
	@scripts/venv.sh build/kernels-venv tests/kernels/requirements.txt
	@build/tegula pack --time --nvrtc build/kernels-venv/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib -o build/sm_90a.tegpack

mutants: ## applies one-line mistakes, each of which verify must catch (<= 20 minutes)
	@scripts/bootstrap.sh test
	@tests/mutants/run.sh

clean: ## removes the build folders that this file makes
	rm -rf $(BUILD_FOLDERS)
