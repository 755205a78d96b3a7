# SPDX-License-Identifier: Apache-2.0
# Sourced by the test scripts: runs steps, counts what each passed and failed, and closes with their sum.
# shellcheck shell=bash
tally_passed=0
tally_failed=0
tally_skipped=0
tally_rows=()
tally_folder=$(mktemp -d)
trap 'rm -rf "$tally_folder"' EXIT

tally_note() {  # tally_note <name> <passed> <failed> <skipped> <seconds>
  tally_passed=$((tally_passed + $2))
  tally_failed=$((tally_failed + $3))
  tally_skipped=$((tally_skipped + $4))
  tally_rows+=("$(printf '%-28s %7d %7d %8d %7d s' "$@")")
}

# One check: passes iff the command does. Returns its status, so that what depends on it can be left out.
tally_step() {  # tally_step <name> <command...>
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name"
  "$@" </dev/null || status=$?
  if [ "$status" = 0 ]; then
    tally_note "$name" 1 0 0 $((SECONDS - start))
  else
    echo "$name: failed with status $status"
    tally_note "$name" 0 1 0 $((SECONDS - start))
  fi
  return "$status"
}

# Every test of a build folder, counted from ctest's JUnit file.
tally_ctest() {  # tally_ctest <name> <build folder> <ctest argument...>
  local name=$1 folder=$2 start=$SECONDS status=0 counts
  local junit=$tally_folder/junit.xml
  shift 2
  rm -f "$junit"
  echo "== $name"
  ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure --no-tests=error \
    --output-junit "$junit" "$@" </dev/null >"$tally_folder/log" 2>&1 || status=$?
  # The tests that passed need no line of their own.
  grep -vE '^ *([0-9]+/[0-9]+ Test +#.* Passed |Start +[0-9]+: )' "$tally_folder/log" || true
  # The first tag, <testsuite>, carries the sums, one attribute a line.
  counts=$(sed '/>/q' "$junit" 2>/dev/null | sed '1d' | tr '\n' ' ' | awk '
    { total = failed = skipped = 0
      for (i = 1; i <= NF; i++) {
        split($i, pair, "\""); gsub(/[^0-9]/, "", pair[2])
        if ($i ~ /^tests=/) total = pair[2]
        if ($i ~ /^failures=/) failed = pair[2]
        if ($i ~ /^(skipped|disabled)=/) skipped += pair[2]
      }
      print total - failed - skipped, failed + 0, skipped + 0 }')
  tally_counted "$name" "$status" "${counts:-0 0 0}" $((SECONDS - start))
}

# A command that closes with its own "N passed, N failed[, N refused][, N skipped]".
# What a device refuses is in nobody's count: it neither passed nor failed.
tally_closing() {  # tally_closing <name> <command...>
  local name=$1 start=$SECONDS status=0 counts
  shift
  echo "== $name"
  "$@" </dev/null >"$tally_folder/log" 2>&1 || status=$?
  cat "$tally_folder/log"
  counts=$(tally_last_line <"$tally_folder/log")
  tally_counted "$name" "$status" "${counts:-0 0 0}" $((SECONDS - start))
}

tally_last_line() {
  awk '/^[0-9]+ passed, [0-9]+ failed(, [0-9]+ [a-z]+)*$/ {
         skipped = 0
         for (i = 5; i < NF; i += 2) if ($(i + 1) ~ /^skipped/) skipped = $i
         found = $1 " " $3 " " skipped + 0
       }
       END { if (found != "") print found }'
}

# A command that failed but counted no failure, and one that counted no test at all, is one failure.
tally_counted() {  # tally_counted <name> <status> "<passed> <failed> <skipped>" <seconds>
  local name=$1 status=$2 seconds=$4 passed failed skipped
  read -r passed failed skipped <<<"$3"
  if { [ "$status" != 0 ] && [ "$failed" = 0 ]; } || [ $((passed + failed)) = 0 ]; then
    echo "$name: status $status, $passed passed, $failed failed: counted as a failure"
    failed=$((failed + 1))
  fi
  tally_note "$name" "$passed" "$failed" "$skipped" "$seconds"
  [ "$failed" = 0 ]
}

# The table of steps and the closing line; the script's exit status.
tally_finish() {
  echo
  printf '%-28s %7s %7s %8s %9s\n' step passed failed skipped time
  printf '%s\n' "${tally_rows[@]}"
  echo "$tally_passed passed, $tally_failed failed, $tally_skipped skipped"
  [ "$tally_failed" = 0 ] && [ "$tally_passed" -gt 0 ]
}
