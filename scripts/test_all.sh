#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make test-all`: what `make test` leaves out. Usage: test_all.sh [asan|tsan|fuzz|aarch64|kernels|python|bench]... (default: all)
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/tally.sh
parts=" ${*:-asan tsan fuzz aarch64 kernels python bench} "
wants() { [[ $parts == *" $1 "* ]]; }

export UBSAN_OPTIONS=print_stacktrace=1
# One run beside the first shows a race or a leak as well as twenty do.
quick=(--tag fast --repeats 2 --no-naive)

if wants asan && tally_step "asan build" scripts/build.sh asan; then
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
  tally_ctest "asan ctest" build-asan
  tally_closing "asan verify" build-asan/tegula verify "${quick[@]}"
fi

if wants tsan && tally_step "tsan build" scripts/build.sh tsan tegula_unit_tests tegula_cli; then
  # The runtime of g++ 12 does not know the wide address layout of newer kernels.
  fixed=()
  ! setarch "$(uname -m)" -R true 2>/dev/null || fixed=(setarch "$(uname -m)" -R)
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  tally_junit "tsan ctest" "${fixed[@]}" ctest --test-dir build-tsan -j "$(nproc)" -L unit --output-on-failure \
    --no-tests=error --output-junit
  tally_closing "tsan verify" "${fixed[@]}" build-tsan/tegula verify "${quick[@]}" --executor threads --threads 4
fi

if wants fuzz; then
  tally_closing "fuzz" scripts/fuzz.sh
fi

if wants aarch64 && tally_step "aarch64 build" scripts/build.sh aarch64 tegula_cli; then
  tally_closing "aarch64 verify" qemu-aarch64 -L /usr/aarch64-linux-gnu build-aarch64/tegula verify "${quick[@]}" \
    --executor inline
fi

# The CUDA kernels, with both compilers that they are made for; no GPU.
if wants kernels && tally_step "kernels build" scripts/build.sh release tegula_cli tegula_unit_tests &&
  tally_step "kernels packages" scripts/venv.sh build/kernels-venv tests/kernels/requirements.txt; then
  tally_closing "kernels" python3 tests/kernels/check_kernels.py
  for package in cuda_nvrtc cu13; do
    TEGULA_NVRTC=$(echo build/kernels-venv/lib/python3*/site-packages/nvidia/$package/lib) \
      tally_ctest "kernels ctest $package" build -R RealCompiler
  done
fi

# The same kernels on a model of a GPU.
if wants kernels && tally_step "model build" scripts/build.sh release tegula_cli fake_cuda model_nvrtc; then
  tally_closing "model verify" tests/device/on_model.sh build build/tegula verify --device cuda --repeats 4 --no-naive --tag fast
fi

if wants python && tally_step "release build" scripts/build.sh release tegula tegula_cli &&
  tally_step "python packages" scripts/venv.sh build/venv tests/python/requirements.txt bench/requirements-peers.txt \
    tests/python/package/requirements.txt && tally_step "python build" scripts/build.sh python tegula_python; then
  tally_junit "python" build/venv/bin/python -m pytest -q -p no:cacheprovider tests/python --junitxml
fi

if wants bench; then
  tally_step "bench build" scripts/build.sh bench tegula_bench
fi
tally_finish
