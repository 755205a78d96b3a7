# SPDX-License-Identifier: Apache-2.0
# Sourced by the test scripts: runs steps, counts what each passed and failed, and closes with the sum.
# What a step prints is indented, so that the only closing line at the margin is the last.
# shellcheck shell=bash
tally_passed=0
tally_failed=0
tally_skipped=0
tally_rows=()
tally_folder=$(mktemp -d)
trap 'rm -rf "$tally_folder"' EXIT

# Runs a command with its output shown, indented, and kept in $tally_folder/log. Returns its status.
tally_run() {  # tally_run <command...>
  "$@" </dev/null 2>&1 | tee "$tally_folder/log" | sed -u 's/^/  /'
  return "${PIPESTATUS[0]}"
}

# One check: passes iff the command does. Returns its status, so that what depends on it can be left out.
tally_step() {  # tally_step <name> <command...>
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name"
  tally_run "$@" || status=$?
  tally_counted "$name" "$status" "$([ "$status" = 0 ] && echo 1 0 0 || echo 0 1 0)" $((SECONDS - start))
}

# Every test of a build folder.
tally_ctest() {  # tally_ctest <name> <build folder> <ctest argument...>
  local name=$1 folder=$2
  shift 2
  tally_junit "$name" ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure --no-tests=error "$@" --output-junit
}

# A test runner whose last argument is the JUnit file to write, from which its tests are counted.
tally_junit() {  # tally_junit <name> <command...>
  local name=$1 start=$SECONDS status=0 counts
  local junit=$tally_folder/junit.xml
  shift
  rm -f "$junit"
  echo "== $name"
  "$@" "$junit" </dev/null >"$tally_folder/log" 2>&1 || status=$?
  # A test of ctest that passed needs no line of its own.
  grep -vE '^ *([0-9]+/[0-9]+ Test +#.* Passed |Start +[0-9]+: )' "$tally_folder/log" | sed 's/^/  /'
  # The first tag <testsuite> carries the sums.
  counts=$(tr '\n' ' ' 2>/dev/null <"$junit" | grep -o '<testsuite [^>]*>' | head -n 1 | awk -F '"' '
    { for (i = 1; i < NF; i += 2) {
        attribute = $i
        gsub(/[^a-z]/, "", attribute)
        sub(/^.*testsuite/, "", attribute)
        value[attribute] = $(i + 1)
      }
      failed = value["failures"] + value["errors"]
      skipped = value["skipped"] + value["disabled"]
      print value["tests"] - failed - skipped, failed, skipped }')
  tally_counted "$name" "$status" "${counts:-0 0 0}" $((SECONDS - start))
}

# A command that closes with its own "N passed, N failed[, N refused][, N skipped]".
# What a device refuses neither passed nor failed.
tally_closing() {  # tally_closing <name> <command...>
  local name=$1 start=$SECONDS status=0 counts
  shift
  echo "== $name"
  tally_run "$@" || status=$?
  counts=$(awk '
    /^all +[0-9]+ +[0-9]+ +[0-9]+$/ { all = $4 }  # the last row of tally_finish
    /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ [a-z]+)*$/ {
      skipped = all
      for (i = 5; i < NF; i += 2) if ($(i + 1) ~ /^skipped/) skipped = $i
      found = $1 " " $3 " " skipped + 0
    }
    END { print found }' "$tally_folder/log")
  tally_counted "$name" "$status" "${counts:-0 0 0}" $((SECONDS - start))
}

# A command that failed but counted no failure, and one that counted no test at all, is one failure.
tally_counted() {  # tally_counted <name> <status> "<passed> <failed> <skipped>" <seconds>
  local name=$1 status=$2 seconds=$4 passed failed skipped
  read -r passed failed skipped <<<"$3"
  if { [ "$status" != 0 ] && [ "$failed" = 0 ]; } || [ $((passed + failed)) = 0 ]; then
    failed=$((failed + 1))
  fi
  [ "$failed" = 0 ] || echo "$name: FAILED (status $status)"
  tally_passed=$((tally_passed + passed))
  tally_failed=$((tally_failed + failed))
  tally_skipped=$((tally_skipped + skipped))
  tally_rows+=("$(printf '%-28s %7d %7d %8d %7d s' "$name" "$passed" "$failed" "$skipped" "$seconds")")
  [ "$failed" = 0 ]
}

# The table of steps and the closing line, exactly "N passed, N failed"; the script's exit status.
tally_finish() {
  printf '\n%-28s %7s %7s %8s %9s\n' step passed failed skipped time
  printf '%s\n' "${tally_rows[@]}"
  printf '%-28s %7d %7d %8d\n\n' all "$tally_passed" "$tally_failed" "$tally_skipped"
  echo "$tally_passed passed, $tally_failed failed"
  [ "$tally_failed" = 0 ] && [ "$tally_passed" -gt 0 ]
}
