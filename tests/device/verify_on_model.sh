#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `tegula verify --device cuda` without a GPU: the CUDA back end's own kernels, on the model of model/machine.hpp.
# Usage: verify_on_model.sh <build folder> [arguments of verify]...
# Seeds go by launch: three repeats of a case meet early, late and mixed asynchronous instructions.
set -eu
build=$(cd "$1" && pwd)
shift
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export TEGULA_LIBCUDA=$build/tests/device/fake_cuda.so TEGULA_NVRTC=$build/tests/device/model_nvrtc
export TEGULA_PACK=none TEGULA_CACHE_DIR=$cache FAKE_CUDA_SMS=${FAKE_CUDA_SMS:-6}
"$build/tegula" verify --device cuda --repeats 3 --no-naive "$@"
