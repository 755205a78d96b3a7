#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with the model of a GPU (model/machine.hpp) as the machine's GPU: kernels of the CUDA back end run on the CPU.
# Usage: on_model.sh <build folder> <command>...     for example: on_model.sh build build/tegula verify --device cuda --repeats 4
# Seeds count a kernel's launches: four repeats of a case meet asynchronous instructions at once, copies late, products late, and mixed.
set -eu
build=$(cd "$1" && pwd)
shift
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export TEGULA_LIBCUDA=$build/tests/device/fake_cuda.so TEGULA_NVRTC=$build/tests/device/model_nvrtc
export TEGULA_PACK=none TEGULA_CACHE_DIR=$cache FAKE_CUDA_SMS=${FAKE_CUDA_SMS:-6}
"$@"
