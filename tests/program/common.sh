# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts beside it, which are called as: SCRIPT.sh PROGRAM SOURCE_TREE CMAKE
set -u
program=$1
source_tree=$2
cmake=$3
trace=$source_tree/data/smollm2-135m.safetensors
here=$source_tree/tests/program
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  sed 's/^/  stdout: /' "$work/out" | head -20
  sed 's/^/  stderr: /' "$work/err" | head -20
  failures=$((failures + 1))
}

# runs COMMAND...: exit status 0, nothing on stderr.
runs() {
  "$program" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ $status -eq 0 ] || fail "tegula $*: exit status $status"
  [ ! -s "$work/err" ] || fail "tegula $*: says something on stderr"
}

# prints TEXT COMMAND...: as runs, and TEXT (a basic regular expression) stands in the output.
prints() {
  wanted=$1
  shift
  runs "$@"
  grep -q -e "$wanted" "$work/out" || fail "tegula $*: does not print '$wanted'"
}

# refuses STATUS TEXT COMMAND...: that exit status, one line "tegula: ..." on stderr that holds TEXT, nothing on stdout.
refuses() {
  wanted_status=$1
  wanted=$2
  shift 2
  "$program" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ $status -eq "$wanted_status" ] || fail "tegula $*: exit status $status instead of $wanted_status"
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "tegula $*: stderr is not one line"
  grep -q "^tegula: " "$work/err" || fail "tegula $*: no 'tegula: ' before the error"
  grep -q -e "$wanted" "$work/err" || fail "tegula $*: the error does not hold '$wanted'"
  [ ! -s "$work/out" ] || fail "tegula $*: an error, but text on stdout"
}

# json KEYS: the value under KEYS (a;b;0) of the document on stdout, which must be JSON throughout.
json() {
  "$cmake" "-DFILE=$work/out" "-DKEYS=$1" -P "$here/json_value.cmake" 2>"$work/json_err" ||
    fail "no JSON value $1: $(tr '\n' ' ' <"$work/json_err")" >&2
}

# is NAME EXPECTED ACTUAL
is() {
  [ "$2" = "$3" ] || fail "$1: '$3' instead of '$2'"
}

finish() {
  [ $failures -eq 0 ] && exit 0
  echo "$failures failed"
  exit 1
}
