#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Applies each mistake of mutants.txt to a copy of its file, rebuilds the one object that holds it, links the case table's
# verify with it, and expects a failing case. Works on a copy of the sources. Arguments: parts of names; none means all.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/build-mutants
root=$build/tree
work=$build/work
limit=180 # seconds a mutant may run; longer is a hang, and caught

# A copy, so that an edit meanwhile cannot mix two versions; times are kept, so that a second run builds little.
rm -rf "$root"
mkdir -p "$root"
cp -a CMakeLists.txt CMakePresets.json cmake include src tests "$root"
cd "$root"

cmake -S . -B "$build" -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DTEGULA_BUILD_TOOLS=OFF -DTEGULA_BUILD_TESTS=ON -DTEGULA_BUILD_EXAMPLES=OFF -DTEGULA_INSTALL=OFF \
  >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --target tegula_cases -j "$(nproc)" >"$build/build.log" 2>&1 || { tail -n 30 "$build/build.log"; exit 1; }
rm -rf "$work"
mkdir -p "$work"
libraries=("$build/lib/libtegula_cases.a" "$build/lib/libtegula_oracle.a" "$build/lib/libtegula.a")
c++ -std=c++20 -O1 -I"$root" -I"$root/include" -c tests/mutants/verify_mutant.cc -o "$work/verify.o"

# link OUTPUT OBJECT...: objects given first take the place of the library's.
link() { local output=$1; shift; c++ -o "$output" "$work/verify.o" "$@" "${libraries[@]}" -pthread; }

# The compile command of a source, without its output and source.
command_of() {
  awk -v file="\"file\": \"$root/$1\"" '/"command":/ { line = $0 } index($0, file) { print line; exit }' \
    "$build/compile_commands.json" |
    sed -E 's/^ *"command": "//; s/",? *$//; s/\\"/"/g; s/ -o [^ ]+ -c [^ ]+$//'
}

# Every instruction set that the machine runs; a mutant of another one is tried on the scalar family.
flags=$(grep -m1 '^flags' /proc/cpuinfo || true)
runs() {
  case $1 in
    avx2) [[ $flags == *" avx2"* && $flags == *" fma"* && $flags == *" f16c"* ]] ;;
    avx512) [[ $flags == *" avx512f"* && $flags == *" avx512bw"* && $flags == *" avx512dq"* && $flags == *" avx512vl"* ]] ;;
    avx512bf16) [[ $flags == *" avx512_bf16"* && $flags == *" avx512_vbmi"* && $flags == *" avx512_vnni"* ]] ;;
    *) true ;;
  esac
}

# replace FILE OLD NEW: one literal occurrence, or status 1.
replace() {
  OLD=$2 NEW=$3 awk '
    BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"]; if (new == "(nothing)") new = "" }
    { at = index($0, old)
      if (at) { ++count; $0 = substr($0, 1, at - 1) new substr($0, at + length(old)) }
      print }
    END { exit count == 1 ? 0 : 1 }' "$1"
}

caught=0 survived=0 broken=0
tell() { printf '%-9s %-11s %-46s %s\n' "$1" "$2" "$3" "$4"; }

mutant() { # name isa file old new
  local name=$1 isa=$2 file=$3 object=$3 output status compile
  runs "$isa" || isa=scalar
  case $file in src/cpu/kernels/* | src/cpu/vec/* | src/cpu/isa/*) object=src/cpu/isa/$isa.cc ;; esac
  local overlay=$work/overlay
  rm -rf "$overlay"
  mkdir -p "$overlay/$(dirname "$file")"
  if ! replace "$file" "$4" "$5" >"$overlay/$file"; then
    tell BROKEN "$isa" "$name" "its text does not stand exactly once in $file"
    broken=$((broken + 1))
    return
  fi
  [[ $object == "$file" ]] && object=$overlay/$file || object=$root/$object
  compile=$(command_of "${object#"$root/"}")
  [[ $object == "$overlay/$file" ]] && compile=$(command_of "$file")
  # The overlay comes first, so that its copy is the one that is included.
  if ! (cd "$build" && eval "${compile/ -I/ -I$overlay -I}" -w -o "$work/mutant.o" -c "$object") 2>"$work/compile.log" ||
    ! link "$work/mutant" "$work/mutant.o" 2>>"$work/compile.log"; then
    tell BROKEN "$isa" "$name" "$(head -n 1 "$work/compile.log")"
    broken=$((broken + 1))
    return
  fi
  local env=()
  [[ $isa == auto ]] || env=(TEGULA_ISA="$isa")
  set +e
  output=$(env "${env[@]}" timeout "$limit" "$work/mutant" 2>&1)
  status=$?
  set -e
  case $status in
    0) tell SURVIVED "$isa" "$name" ""; survived=$((survived + 1)) ;;
    1) tell caught "$isa" "$name" "${output:0:110}"; caught=$((caught + 1)) ;;
    2) tell BROKEN "$isa" "$name" "$output"; broken=$((broken + 1)) ;;
    124) tell caught "$isa" "$name" "hangs"; caught=$((caught + 1)) ;;
    *) tell caught "$isa" "$name" "ends with status $status"; caught=$((caught + 1)) ;;
  esac
}

# Without a mistake nothing may fail, or every verdict below would mean nothing.
link "$work/unchanged"
for isa in scalar avx2 avx512 avx512bf16 amx_model; do
  runs "$isa" || continue
  TEGULA_ISA=$isa "$work/unchanged" || { echo "the unchanged library fails on $isa"; exit 1; }
done

name='' isa='' file='' old='' new=''
finish() {
  [[ -n $name ]] || return 0
  local wanted=$#
  for part in "$@"; do [[ $name == *"$part"* ]] && wanted=0; done
  [[ $wanted -eq 0 ]] && mutant "$name" "$isa" "$file" "$old" "$new"
  name=''
}
while IFS= read -r line || [[ -n $line ]]; do
  case $line in
    'name '*) finish "$@"; name=${line#name } ;;
    'isa '*) isa=${line#isa } ;;
    'file '*) file=${line#file } ;;
    'old '*) old=${line#old } ;;
    'new '*) new=${line#new } ;;
  esac
done <tests/mutants/mutants.txt
finish "$@"
echo "$caught caught, $survived survived, $broken broken"
[[ $survived -eq 0 && $broken -eq 0 && $caught -gt 0 ]]
