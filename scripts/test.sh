#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make test`: release build, unit tests, rules, examples and package tests (ctest), the whole case table with each
# instruction set that this machine has, and the main job. No Python.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/tally.sh

if tally_step "release build" scripts/build.sh release; then
  tally_ctest "ctest" build
  tally_closing "verify" build/tegula verify --isa all
  tally_step "replay" build/tegula replay data/smollm2-135m.safetensors
fi
tally_finish
