#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rules on the release objects, from what nm and readelf say.
#   object_rules.sh constructors <static library>      nothing of ours runs before main
#   object_rules.sh exports <shared library> <tegula.h>  exactly the header's functions are exported (CC: the compiler)
#   object_rules.sh isa <name> <object>...             every global symbol stands in tegula::isa_<name>
set -eu
rule=$1
shift
case $rule in
  constructors)
    readelf -SW "$1" | awk '
      /^File: / { member = $2; files++ }
      /[ .]\.?(preinit_array|init_array|ctors)/ { print member ": has " $0; bad++ }
      END {
        if (files == 0) { print "no object found"; bad++ }
        exit bad > 0
      }'
    ;;
  exports)
    library=$1
    header=$2
    {
      # A declaration: the name before the first parenthesis after the macro TEGULA_API, once it is expanded.
      ${CC:-cc} -E -P "$header" | tr '\n;{' ' \n\n' | sed -n \
        's/.*visibility("default"))) [^(]*[ *]\(tegula_[a-z0-9_]*\)(.*/declared \1/p'
      nm -D --defined-only "$library" | awk '
        $2 == "A" && $3 ~ /^TEGULA_[0-9]+(@|$)/ { next }  # the node of the version script
        { sub(/@.*/, "", $3); print "exported", $3 }'
    } | awk '
      { seen[$1, $2] = 1; name[$2] = 1; total[$1]++ }
      END {
        for (n in name) {
          if (!(("declared", n) in seen)) { print n ": exported, but not declared in the header"; bad++ }
          if (!(("exported", n) in seen)) { print n ": declared in the header, but not exported"; bad++ }
        }
        if (total["declared"] == 0 || total["exported"] == 0) { print "no function found"; bad++ }
        exit bad > 0
      }'
    ;;
  isa)
    # Inline functions and templates that were not inlined become weak symbols, of which the linker keeps any one copy:
    # one compiled for AVX-512 would then run on every machine.
    name=isa_$1
    shift
    for object in "$@"; do
      nm --defined-only --extern-only "$object"
    done | awk -v scope="6tegula${#name}$name" '
      NF == 3 {
        symbols++
        if ($3 !~ "^_Z(T[VIST]|G[VR])?Z?N[rVKRO]*" scope) { print $3 " (" $2 ") is outside the namespace"; bad++ }
      }
      END {
        if (symbols == 0) { print "no symbol found"; bad++ }
        exit bad > 0
      }' | c++filt | { ! grep .; }
    ;;
  *)
    echo "unknown rule $rule" >&2
    exit 2
    ;;
esac
