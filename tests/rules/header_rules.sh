#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone and without a warning: .h as C11 and C++20, .hpp as C++20.
# Usage: header_rules.sh <include folder>       CC and CXX name the compilers
set -eu
cd "$1"
flags="-fsyntax-only -Wall -Wextra -Wshadow -Wconversion -pedantic -Werror -I ."
status=0
count=0
for header in tegula/*; do
  count=$((count + 1))
  case $header in
    *.h)
      printf '#include <%s>\n' "$header" | ${CC:-cc} -std=c11 $flags -Wstrict-prototypes -x c - || status=1
      ;;
  esac
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" | ${CXX:-c++} -std=c++20 $flags -x c++ - || status=1
done
[ "$count" -gt 0 ] || { echo "no header found"; exit 1; }
exit "$status"
