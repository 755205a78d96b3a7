#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make test`: release build, unit tests, rules, examples, package tests, and the whole case table on this CPU.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/tally.sh

if tally_step "build release" scripts/build.sh release; then
  tally_ctest "ctest" build
  tally_closing "verify" build/tegula verify
fi
tally_finish
