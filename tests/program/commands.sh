#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is common to all commands, and explain, doctor, bench.
. "$2/tests/program/common.sh"
export TEGULA_LIBCUDA="$work/absent"  # the same on a machine with a GPU

prints "^Usage: " --help
for command in run replay verify explain bench doctor; do
  prints "$command" --help
  prints "^Usage: .*$command" $command --help
  grep -q -e "--json" "$work/out" || fail "$command --help: no --json"
  refuses 2 "nonsense" $command something --nonsense
done
prints "^tegula [0-9]*\.[0-9]*\.[0-9]* (ABI [0-9]*)$" --version
for wish in --help --version "run --help" doctor; do
  : >"$work/out"
  "$program" $wish >/dev/full 2>"$work/err" && fail "$wish: exits with 0 where stdout is full"
  grep -q "^tegula: stdout: " "$work/err" || fail "$wish: says nothing about a full stdout"
done
refuses 2 "subcommand"
refuses 2 "nonsense is no command" nonsense
refuses 2 "see tegula explain --help" explain --batch many

prints "chosen" doctor
runs doctor --json
is "doctor: scalar" scalar "$(json 'isa;0;name')"
is "doctor: scalar is built" ON "$(json 'isa;0;built')"
is "doctor: cuda" OFF "$(json 'gpu;cuda_back_end')"
[ "$(json 'cpu;usable_cpus')" -ge 1 ] || fail "doctor: no usable CPU"

prints "cpu_" explain
prints "cpu_scalar" explain --isa scalar --dtype fp16 --heads-q 12 --heads-kv 3 --causal --window-left 100
prints "cpu_" explain --dtype bf16 --kv-dtype e4m3 --page-size 16 --seqlen-q 1 --seqlen-k 4000 --with lse,sink,seqlen_new
prints "cpu_" explain --total-q 300 --total-k 500 --bias-dtype bool --softcap 30
runs explain --json --isa scalar --threads 3
is "explain: isa" scalar "$(json isa)"
is "explain: workers" 3 "$(json num_workers)"
is "explain: implementation" cpu_scalar "$(json implementation)"
prints "cuda_forward_sm90" explain --device sm_90 --dtype bf16 --head-dim 128 --causal
prints "not cuda_forward_sm90 *the device is not a GPU" explain --dtype bf16
refuses 1 "f32" explain --device sm_90 --dtype fp32
refuses 1 "sm_80 is not served" explain --device sm_80
refuses 1 "none of cpu, cuda" explain --device gpu
refuses 1 "num_heads_kv 3 does not divide" explain --heads-q 16 --heads-kv 3
refuses 1 "head_dim" explain --head-dim 1000
refuses 1 "not supported" explain --dtype fp32 --kv-dtype e4m3
refuses 2 "none of fp32" explain --dtype fp12
refuses 2 "none of auto" explain --isa sse
refuses 2 "lsd" explain --with lsd
"$program" explain --json --head-dim 1000 >"$work/out" 2>"$work/err" && fail "explain --json: an error exits with 0"
case $(json error) in *head_dim*) ;; *) fail "explain --json: no error in the document" ;; esac

runs bench --list --threads 1
is "bench: cells" "$(sort -u "$work/out" | wc -l)" "$(wc -l <"$work/out")"
prints "^decode-e4m3-ratio16-permuted16-l3$" bench --suite cpu --list
prints "^forward-bf16-d256-causal-s16384$" bench --suite h200-forward --list
refuses 1 "goes with --suite cpu" bench --suite h200-forward --check
refuses 1 "absent" bench --suite h200-forward --filter '*-s512'
runs bench --list --json --threads 1 --filter 'forward-bf16-d64-causal-s2048-ragged'
is "bench: shape" ragged "$(json '0;layout')"
refuses 1 "no cell matches" bench --filter 'forward-fp12-*' --list
refuses 1 "more than the" bench --threads 4096
refuses 1 "is no list" bench --cpus many
refuses 1 "may not use CPU" bench --cpus 4095
refuses 2 "excludes" bench --cpus 0 --threads 1

# A run. Its figures are nobody's business here: a busy machine may never be steady, which the program says.
small='small-f32-s16,append-bf16-paged16,decode-f32-ratio1-permuted16-l3'
for file in 1 2; do
  "$program" bench --quick --threads 1 --filter "$small" --out "$work/lines" --commit abc --json >"$work/out" 2>"$work/err"
  [ $? -le 1 ] && [ ! -s "$work/err" ] || fail "bench: does not run"
  case $(json machine) in *"; class "*"1 CPUs; fp32 FMA "*" GFLOP/s"*) ;; *) fail "bench: no limits in the machine" ;; esac
  is "bench: limits" limit "$(json 'lines;0;op')"
  is "bench: commit" abc "$(json 'lines;0;commit')"
  wc -l <"$work/lines" >"$work/count$file"
done
[ "$(cat "$work/count2")" -gt "$(cat "$work/count1")" ] || fail "bench: lines are not appended"
while read -r line; do
  echo "$line" >"$work/out"
  is "bench: suite" cpu "$(json suite)"
done <"$work/lines"
refuses 1 "appending" bench --quick --threads 1 --filter "$small" --out "$work/no/such/folder"

# Stored lines: one cell below its bar, then one that was not run, then another class.
bar_line() {
  echo '{"suite":"cpu","cell":"forward-f32-d64-full-s1024","op":"forward","impl":"cpu_x","threads":2,"rounds":7,"of_limit":'"$1"',
    "machine":"m; class '"$2"', 2 CPUs"}' | tr -d '\n'
  echo
}
bar_line 0.87 zen4 >"$work/below"
"$program" bench --check --lines "$work/below" --filter 'forward-f32-d64-full-s1024' >"$work/out" 2>"$work/err"
is "bench: a cell below its bar fails" 1 $?
grep -q "^    forward-f32-d64-full-s1024  *87.0 %" "$work/out" || fail "bench: does not show the cell below its bar"
bar_line 0.89 zen4 >"$work/good"
prints "passed" bench --check --lines "$work/good" --filter 'forward-f32-d64-full-s1024'
runs bench --check --lines "$work/below,$work/good" --filter 'forward-f32-d64-full-s1024' --json
is "bench: check" ON "$(json 'check;passed')"
"$program" bench --check --lines "$work/good" >"$work/out" 2>"$work/err"
is "bench: bars whose cells were not run fail" 1 $?
grep -q "not run (an error)" "$work/out" || fail "bench: does not list what was not run"
bar_line 0.89 zen9 >"$work/class"
refuses 1 "no bars for machines of class 'zen9'" bench --check --lines "$work/class"
bar_line 0.89 zen9 >>"$work/good"
refuses 1 "of two classes" bench --check --lines "$work/good"
echo "no line" >"$work/broken"
refuses 1 "broken:1: is no result line" bench --check --lines "$work/broken"
refuses 1 "cannot be read" bench --check --lines "$work/absent"
refuses 1 "goes with --check" bench --lines "$work/below"
TEGULA_ISA=scalar refuses 1 "--check: " bench --check --threads 1 --filter small-f32-s16  # the class, or the threads

finish
