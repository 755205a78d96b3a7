#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is common to all commands, and explain, doctor, bench.
. "$2/tests/program/common.sh"

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
refuses 1 "num_heads_kv 3 does not divide" explain --heads-q 16 --heads-kv 3
refuses 1 "head_dim" explain --head-dim 1000
refuses 1 "not supported" explain --dtype fp32 --kv-dtype e4m3
refuses 2 "none of fp32" explain --dtype fp12
refuses 2 "none of auto" explain --isa sse
refuses 2 "lsd" explain --with lsd
"$program" explain --json --head-dim 1000 >"$work/out" 2>"$work/err" && fail "explain --json: an error exits with 0"
case $(json error) in *head_dim*) ;; *) fail "explain --json: no error in the document" ;; esac

runs bench --suite forward --dtype bf16,fp32 --head-dim 64 --mask causal --seqlen 32 --rounds 1 --out "$work/lines" --json
is "bench: cell" forward-bf16-h8/8-d64-q32-k32-causal-dense "$(json '0;cell')"
is "bench: peer" standard "$(json '0;peer')"
is "bench: lines" 4 "$(wc -l <"$work/lines")"
prints "speedup" bench --suite decode --dtype fp16 --context 16 --rounds 1 --out "$work/lines"
is "bench: lines are appended" 8 "$(wc -l <"$work/lines")"
while read -r line; do
  echo "$line" >"$work/out"
  is "bench: suite" cpu_first "$(json suite)"
done <"$work/lines"
refuses 1 "appending" bench --suite forward --out "$work/no/such/folder"
refuses 1 "e4m3 is none" bench --dtype e4m3

finish
