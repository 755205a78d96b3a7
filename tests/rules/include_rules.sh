#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks every #include of the tree against include_edges.txt, and each source's licence line.
# Usage: include_rules.sh <root of the tree>
set -eu
edges=$(cd "$(dirname "$0")" && pwd)/include_edges.txt
cd "$1"
folders=""
for folder in include src device tests tools bench examples python; do
  [ ! -d "$folder" ] || folders="$folders $folder"
done
# shellcheck disable=SC2086  # a list of folders
find $folders -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cc' -o -name '*.inc' -o -name '*.cu' \
  -o -name '*.cuh' \) | sort | awk -v edges="$edges" '
  function fail(text) { print text; bad++ }
  function under(path, folder) { return path == folder || index(path, folder "/") == 1 }
  function exists(path,    line, found) {
    found = (getline line < path) >= 0
    close(path)
    return found
  }
  # The word that a system header stands for.
  function kind(header) {
    if (header == "iostream") return "iostream"
    if (header ~ /^([a-z]*intrin\.h|arm_.*\.h)$/) return "simd"
    if (header ~ /^fmt\//) return "fmt"
    if (header ~ /^CLI\//) return "cli11"
    if (header ~ /^nlohmann\//) return "json"
    if (header ~ /^(gtest|gmock)\//) return "gtest"
    if (header ~ /^benchmark\//) return "benchmark"
    if (header ~ /^nanobind\//) return "nanobind"
    if (header ~ /^(tbb\/|pthreadpool\.h$)/) return "pools"
    if (header ~ /^(format|omp\.h)$/) return "nobody"
    if (header ~ /^[a-z0-9_]+(\.h)?$/ || header ~ /^(sys|linux|asm)\//) return "std"
    return "unknown"
  }
  BEGIN {
    while ((getline line < edges) > 0) {
      sub(/#.*/, "", line)
      count = split(line, word, " ")
      if (count == 0) continue
      allowed[word[1]] = word[1]
      for (i = 2; i <= count; i++) allowed[word[1]] = allowed[word[1]] " " word[i]
    }
    close(edges)
  }
  {
    file = $0
    files++
    owner = ""
    for (folder in allowed) if (under(file, folder) && length(folder) > length(owner)) owner = folder
    if (owner == "") { fail(file ": no rule for its folder in include_edges.txt"); next }
    count = split(allowed[owner], may, " ")
    directory = file
    sub(/\/[^\/]*$/, "", directory)
    number = 0
    while ((getline line < file) > 0) {
      number++
      if (number == 1 && line !~ /SPDX-License-Identifier: Apache-2\.0/)
        fail(file ":1: the first line is not the SPDX licence line")
      if (line !~ /^[ \t]*#[ \t]*include[ \t]*["<]/) continue
      quoted = line ~ /^[^<]*"/
      target = line
      sub(/^[^"<]*["<]/, "", target)
      sub(/[">].*/, "", target)
      if (target ~ /^tegula\//) what = "include/" target
      else if (!quoted) what = kind(target)
      else if (exists(target)) what = target
      else if (exists(directory "/" target)) what = directory "/" target
      else { fail(file ":" number ": \"" target "\" is not found from the root of the tree"); continue }
      if (what ~ /\.\.\//) { fail(file ":" number ": \"" target "\": name it from the root of the tree"); continue }
      fine = 0
      for (i = 1; i <= count; i++) if (under(what, may[i])) fine = 1
      if (!fine) fail(file ":" number ": " owner " may not include " target " (" what ")")
    }
    close(file)
  }
  END {
    if (files == 0) fail("no source found")
    printf "%d files, %d violations\n", files, bad
    exit bad > 0
  }'
