#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every relative link of the tree's Markdown files names a file that exists and, after #, a heading of it.
# Usage: doc_links.sh <root of the tree>
set -eu
cd "$1"
find . -path './build*' -prune -o -path './.git' -prune -o -name '*.md' -print | sort | awk '
  function fail(message) { print message; bad++ }
  function exists(path) { return system("test -e '\''" path "'\''") == 0 }
  # A heading as the fragment that a browser of Markdown makes of it.
  function slug(heading) {
    sub(/^#+[ \t]+/, "", heading)
    sub(/[ \t]+#*[ \t]*$/, "", heading)
    heading = tolower(heading)
    gsub(/[^a-z0-9 _-]/, "", heading)
    gsub(/ /, "-", heading)
    return heading
  }
  function has_heading(file, fragment,    line, fenced, found, base, seen) {
    while ((getline line < file) > 0) {
      if (line ~ /^ *(```|~~~)/) fenced = !fenced
      if (fenced || line !~ /^#+[ \t]/) continue
      base = slug(line)
      if (base == fragment || base "-" seen[base] == fragment) found = 1
      seen[base]++
    }
    close(file)
    return found
  }
  function check(target,    path, fragment) {
    if (target ~ /^[a-z]+:/) return  # another site
    links++
    fragment = ""
    path = target
    if (match(target, /#/)) { fragment = substr(target, RSTART + 1); path = substr(target, 1, RSTART - 1) }
    if (path ~ /^\//) path = "." path
    else path = path == "" ? file : directory "/" path
    if (path ~ /'\''/ || !exists(path)) fail(file ":" number ": " target " does not exist")
    else if (fragment != "" && path ~ /\.md$/ && !has_heading(path, fragment))
      fail(file ":" number ": " path " has no heading #" fragment)
  }
  {
    file = $0
    files++
    directory = file
    sub(/\/[^\/]*$/, "", directory)
    lines = 0
    fenced = 0
    while ((getline line < file) > 0) text[++lines] = line
    close(file)  # before has_heading() reads a file, perhaps this one
    for (number = 1; number <= lines; number++) {
      line = text[number]
      if (line ~ /^ *(```|~~~)/) fenced = !fenced
      if (fenced) continue
      gsub(/`[^`]*`/, "", line)
      if (match(line, /^ *\[[^]]+\]:[ \t]*/)) {
        target = substr(line, RSTART + RLENGTH)
        sub(/[ \t].*/, "", target)
        check(target)
      }
      while (match(line, /\]\([^)]*\)/)) {
        target = substr(line, RSTART + 2, RLENGTH - 3)
        line = substr(line, RSTART + RLENGTH)
        sub(/[ \t]+".*/, "", target)
        check(target)
      }
    }
  }
  END {
    if (files == 0) fail("no document found")
    printf "%d documents, %d links, %d broken\n", files, links, bad
    exit bad > 0
  }'
