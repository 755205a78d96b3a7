#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tegula run: files in, files out, the check.
. "$2/tests/program/common.sh"

prefix=prompt1.layer01.decode.
prints "passed" run "$trace" --prefix $prefix --causal --check
# The outputs as inputs of another run: safetensors, then npy.
runs run "$trace" --prefix $prefix --causal --o-dtype fp32 --out "$work/o.npy" --out-lse "$work/lse.npy"
[ -s "$work/o.npy" ] && [ -s "$work/lse.npy" ] || fail "run: no output files"
cp "$work/o.npy" "$work/q.npy"
cp "$work/o.npy" "$work/k.npy"
cp "$work/o.npy" "$work/v.npy"
runs run "$work/q.npy" "$work/k.npy" "$work/v.npy" --check --json --out "$work/result.safetensors"
is "run: passed" ON "$(json 'check;passed')"
is "run: dtype" f32 "$(json 'o;dtype')"
is "run: tokens" 48 "$(json 'o;shape;1')"
for options in "--causal" "--window-left 5 --window-right 2" "--chunk 7" "--softcap 2.5" "--scale 0.3" "--num-splits 3" \
  "--fixed-split 64" "--o-dtype bf16" "--isa scalar" "--threads 1" "--threads 3" "--repeat 3"; do
  # shellcheck disable=SC2086  # options are words
  prints "passed" run q="$work/o.npy" k="$work/o.npy" v="$work/o.npy" $options --check
done
refuses 1 "No such file" run "$work/absent.safetensors"
refuses 2 "required" run
refuses 1 "q: not in the files" run "$trace"
refuses 1 "NAME=PATH is for npy" run q="$work/result.safetensors"
refuses 1 "no operand" run "$work/lse.npy"
refuses 1 "is the input" run "$work/q.npy" "$work/k.npy" "$work/v.npy" --out "$work/../$(basename "$work")/q.npy"
refuses 1 "as well" run "$work/q.npy" "$work/k.npy" "$work/v.npy" --out "$work/x.npy" --out-lse "$work/x.npy"
echo "no array" >"$work/text.npy"
refuses 1 "neither an npy nor a safetensors file" run "$work/text.npy"
refuses 2 "scale" run "$work/q.npy" "$work/k.npy" "$work/v.npy" --scale 0
refuses 1 "given twice" run "$work/q.npy" q="$work/o.npy" "$work/k.npy" "$work/v.npy"
refuses 1 "softcap" run "$work/q.npy" "$work/k.npy" "$work/v.npy" --softcap -1
refuses 1 "window_right" run "$work/q.npy" "$work/k.npy" "$work/v.npy" --causal --window-right 3
refuses 1 "differs" run "$work/q.npy" k="$work/lse.npy" "$work/v.npy"
refuses 1 "bf16" run "$trace" --prefix $prefix --out "$work/bf16.npy"
refuses 1 "npy" run "$trace" --prefix $prefix --out-lse "$work/lse.safetensors"
refuses 1 "" run "$trace" --prefix $prefix --out "$work/no/such/folder/o.safetensors"
refuses 2 "NAME=FILE\|none of" run "$trace" --prefix $prefix --o-dtype int8
printf 'not a tensor file at all' >"$work/bad"
refuses 1 "bad" run "$work/bad"
: >"$work/empty"
refuses 1 "empty" run "$work/empty"
head -c 100000 "$trace" >"$work/short.safetensors"
refuses 1 "short" run "$work/short.safetensors"
head -c 90 "$work/o.npy" >"$work/short.npy"
refuses 1 "short" run q="$work/short.npy"
"$program" run --json "$work/bad" >"$work/out" 2>"$work/err"
is "run --json: exit status of an error" 1 $?
case $(json error) in *bad*) ;; *) fail "run --json: no error in the document" ;; esac

finish
