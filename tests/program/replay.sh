#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tegula replay on the committed trace: what passes, what must not, and what is no trace.
. "$2/tests/program/common.sh"

quick="--prompts 1 --layers 1 --repeat 1"
# shellcheck disable=SC2086  # options are words
{
  prints "^passed: " replay "$trace" --layers 1 --steps 20 --repeat 2
  grep -q "4, 2 at a time: prompts of 891 and 283 tokens, up to 20 decode steps" "$work/out" || fail "replay: not both prompts in one batch"
  runs replay "$trace" $quick --steps 4 --json
  is "replay: passed" ON "$(json passed)"
  is "replay: same bits" ON "$(json same_bits)"
  is "replay: wrong cache rows" 0 "$(json wrong_cache_rows)"
  # One prompt alone: four requests of 2, 4, 2, 4 steps, two at once.
  is "replay: decode tokens" 12 "$(json 'decode;tokens')"
  is "replay: requests at once" 2 "$(json slots)"
  [ "$(json 'pages;reused')" -gt 0 ] || fail "replay: no page was used again"
  is "replay: no page was idle" "$(json 'pages;pool')" "$(json 'pages;peak')"
  for options in "--page-size 1" "--page-size 7 --seed 9" "--page-size 512" "--dtype fp16" "--dtype fp32" "--isa scalar" \
    "--cache-dtype e4m3" "--cache-dtype e5m2" "--dtype fp16 --cache-dtype e4m3" "--dtype fp32 --cache-dtype bf16" \
    "--threads 1 --steps 9" "--threads 3" "--steps 0"; do
    prints "^passed: " replay "$trace" $quick $options
  done
  refuses 1 "not supported" replay "$trace" $quick --dtype fp32 --cache-dtype e4m3
  refuses 1 "layers: 2 is not in the trace" replay "$trace" --layers 2
  refuses 1 "prompts: 5 is not in the trace" replay "$trace" --prompts 5
  refuses 1 "e4m3 is none" replay "$trace" --dtype e4m3
}
refuses 2 "page-size" replay "$trace" --page-size 0
refuses 2 "required" replay
refuses 1 "No such file" replay "$work/absent"
printf 'text' >"$work/text"
refuses 1 "text" replay "$work/text"
head -c 500000 "$trace" >"$work/short"
refuses 1 "short" replay "$work/short"

# A file that is safetensors but no trace.
header='{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
printf '\066\000\000\000\000\000\000\000%s\000\000\000\000' "$header" >"$work/other"
is "the header's length" 54 ${#header}
refuses 1 "no trace" replay "$work/other"

# The recorded output altered: the comparison with it has to fail, and says where.
length=$(od -An -tu8 -N8 "$trace" | tr -d ' ')
offset=$("$cmake" "-DFILE=$trace" -DOFFSET=8 "-DLENGTH=$length" "-DKEYS=prompt1.layer01.prefill.o;data_offsets;0" \
  -P "$here/json_value.cmake")
cp "$trace" "$work/altered"
printf 'EEEEEEEE' | dd of="$work/altered" bs=1 seek=$((8 + length + offset + 4096)) conv=notrunc 2>/dev/null
# shellcheck disable=SC2086
"$program" replay "$work/altered" $quick >"$work/out" 2>"$work/err"
is "replay of an altered trace: exit status" 1 $?
grep -q "^FAILED: o .* where the trace has" "$work/out" || fail "replay: an altered trace is not told"

finish
