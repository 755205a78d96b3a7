#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tegula verify: filters, totals, and that a wrong table or a failing case is told.
. "$2/tests/program/common.sh"
export TEGULA_LIBCUDA="$work/absent"  # the same on a machine with a GPU

runs verify --list --json
first=$(json '0;id')
runs verify --id "$first" --json --repeats 2
is "verify: one case ran" 1 $(($(json passed) + $(json refused)))
is "verify: none failed" 0 "$(json failed)"
prints "^[0-9]* passed, 0 failed, [0-9]* refused, [0-9]* skipped$" verify --op combine --repeats 2
prints "^[0-9]* passed, 0 failed, [0-9]* refused, [0-9]* skipped$" verify --op append_kv --isa scalar --executor inline --repeats 2
prints "^[0-9]* passed, 0 failed, [0-9]* refused, [0-9]* skipped$" verify --id 'fwd-size-3?x*' --id fwd-size-1x1 --tag fast --executor threads --threads 3 --repeats 2 --no-naive
tail -1 "$work/out" | grep -q "passed, " || fail "verify: the totals are not the last line"
refuses 1 "no case" verify --id 'no such case'
refuses 1 "CUDA driver" verify --device cuda
refuses 1 "none of cpu, cuda" verify --device gpu
refuses 2 "executor" verify --executor none
refuses 1 "absent" verify --table "$work/absent"
refuses 1 "/dev/zero: is not a regular file" verify --table /dev/zero
grep '"fwd-size-1x2"' "$source_tree/tests/cases/table/forward_named.jsonl" >"$work/own.jsonl"
prints "^1 passed, 0 failed, 0 refused, 0 skipped$" verify --table "$work/own.jsonl" --repeats 2
# What an installation has beside the program comes before the source tree.
mkdir -p "$work/bin" "$work/share/tegula/cases/table" "$work/share/tegula/cases/refusals"
cp "$program" "$work/bin/tegula"
cp "$work/own.jsonl" "$work/share/tegula/cases/table/"
: >"$work/share/tegula/cases/refusals/cpu.txt"
is "verify of an installation" "1 passed, 0 failed, 0 refused, 0 skipped" "$("$work/bin/tegula" verify --repeats 2 | tail -1)"
echo '{"id": "x", "op": "forward", "nonsense": 1}' >"$work/table.jsonl"
refuses 1 "nonsense" verify --table "$work/table.jsonl"

finish
