#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every libFuzzer target. Usage: fuzz.sh [seconds for each target (60)] [targets at once (2)]
# A finding stays in build-fuzz/findings/; `build-fuzz/tests/fuzz/fuzz_NAME FILE` repeats it.
# Closes with "N passed, N failed" (one for each target).
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-60}
at_once=${2:-2}

if ! version=$(scripts/bootstrap.sh print-fuzz-clang); then
  echo "fuzzing needs clang >= 16 with libclang-rt-N-dev: scripts/bootstrap.sh all installs it" >&2
  exit 1
fi
CC=clang-$version CXX=clang++-$version scripts/build.sh fuzz tegula_fuzz || exit 1

folder=build-fuzz/tests/fuzz
findings=build-fuzz/findings
rm -rf "$findings"
mkdir -p "$findings"

run_target() {  # run_target <name>: everything it prints goes to its log
  local name=$1
  local new=build-fuzz/corpus/$name  # what earlier runs found interesting
  mkdir -p "$new"
  local options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix="$findings/$name-")
  [ ! -f "tests/fuzz/$name.dict" ] || options+=(-dict="tests/fuzz/$name.dict")
  "$folder/fuzz_$name" "${options[@]}" "$new" "tests/fuzz/corpus/$name" \
    >"build-fuzz/$name.log" 2>&1
  echo $? >"build-fuzz/$name.status"
}

names=()
for source in tests/fuzz/target_*.cc; do
  name=${source##*/target_}
  names+=("${name%.cc}")
done
for name in "${names[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
  run_target "$name" &
done
wait

passed=0
failed=0
for name in "${names[@]}"; do
  log=build-fuzz/$name.log
  if [ "$(cat "build-fuzz/$name.status")" = 0 ]; then
    passed=$((passed + 1))
    runs=$(awk '/^stat::number_of_executed_units:/ { print $2 }' "$log")
    echo "$name: ${runs:-?} runs in $seconds s, nothing found"
  else
    failed=$((failed + 1))
    tail -n 60 "$log"
    echo "$name: failed, see $log and $findings/"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
