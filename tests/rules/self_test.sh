#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each rule passes a good sample and fails each bad one. Usage: self_test.sh      CC and CXX name the compilers
set -eu
rules=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CC=${CC:-cc}
CXX=${CXX:-c++}
status=0

expect() {  # expect <pass|fail> <what the output must hold> <command...>
  wanted=$1
  text=$2
  shift 2
  got=fail
  "$@" >"$folder/output" 2>&1 && got=pass
  if [ "$got" != "$wanted" ] || ! grep -qF -- "$text" "$folder/output"; then
    if [ "$got" != "$wanted" ] || [ -n "$text" ]; then
      echo "$*: got $got, wanted $wanted with '$text'; its output:"
      cat "$folder/output"
      status=1
    fi
  fi
}

source() {  # source <path> <line>...: writes a source with its licence line
  mkdir -p "$(dirname "$tree/$1")"
  path=$tree/$1
  shift
  { echo '// SPDX-License-Identifier: Apache-2.0'; printf '%s\n' "$@"; } >"$path"
}
fresh() {
  tree=$folder/tree
  rm -rf "$tree"
  source include/tegula/tegula.h '#include <stdint.h>'
  source src/core/a.hpp '#include <tegula/tegula.h>' '#include <cstdint>'
  source src/cpu/b.hpp '#include "src/core/a.hpp"' '#include <immintrin.h>'
  source src/cuda/c.hpp '#include "src/core/a.hpp"'
  source src/plan/d.cc '#include "src/cpu/b.hpp"' '#include "src/cuda/c.hpp"'
  source tests/oracle/o.hpp '#include <cmath>'
  source tools/tegula/main.cc '#include <fmt/core.h>' '#include "tests/oracle/o.hpp"'
}

# Include rules.
fresh
expect pass "0 violations" "$rules/include_rules.sh" "$tree"
bad_include() {  # bad_include <file> <include> <what the output must hold>
  fresh
  source "$1" "#include $2"
  expect fail "$3" "$rules/include_rules.sh" "$tree"
}
bad_include src/cpu/x.cc '"src/cuda/c.hpp"' "src/cpu may not include src/cuda/c.hpp"
bad_include src/cuda/x.cc '"src/cpu/b.hpp"' "src/cuda may not include src/cpu/b.hpp"
bad_include src/core/x.cc '"src/cpu/b.hpp"' "src/core may not include"
bad_include src/core/x.cc '<fmt/core.h>' "(fmt)"
bad_include src/core/x.cc '<iostream>' "(iostream)"
bad_include src/core/x.cc '<omp.h>' "(nobody)"
bad_include src/core/x.cc '<immintrin.h>' "(simd)"
bad_include src/core/x.cc '"nowhere.hpp"' "is not found"
bad_include src/cpu/x.cc '"../cuda/c.hpp"' "name it from the root"
bad_include include/tegula/x.hpp '"src/core/a.hpp"' "include/tegula may not include"
bad_include tests/oracle/x.cc '<tegula/tegula.h>' "tests/oracle may not include"
bad_include tests/oracle/x.cc '"src/core/a.hpp"' "tests/oracle may not include"
bad_include tools/tegula/x.cc '"src/core/a.hpp"' "tools may not include"
bad_include examples/x.c '"src/core/a.hpp"' "examples may not include"
bad_include src/new/x.cc '<cstdint>' "no rule for its folder"
fresh
echo '#include <cstdint>' >"$tree/src/core/x.cc"
expect fail "licence line" "$rules/include_rules.sh" "$tree"

# Public headers.
fresh
expect pass "" "$rules/header_rules.sh" "$tree/include"
source include/tegula/x.hpp 'inline std::string text();'
expect fail "string" "$rules/header_rules.sh" "$tree/include"
fresh
source include/tegula/tegula.h 'int f();'
expect fail "strict-prototypes" "$rules/header_rules.sh" "$tree/include"

# Documents.
document() { mkdir -p "$(dirname "$tree/$1")"; cat >"$tree/$1"; }
fresh
document README.md <<'END'
# Big title: one
[a](docs/a.md) [b](docs/a.md#the-second-part) [c](#big-title-one) [d](https://example.org/none) `[e](none.md)`
```
[f](none.md)
```
END
document docs/a.md <<'END'
## The second part
[up](../README.md)
END
expect pass "0 broken" "$rules/doc_links.sh" "$tree"
echo '[x](docs/none.md)' >>"$tree/README.md"
expect fail "docs/none.md does not exist" "$rules/doc_links.sh" "$tree"
document README.md <<'END'
[x](docs/a.md#the-third-part)
END
expect fail "no heading #the-third-part" "$rules/doc_links.sh" "$tree"

# Objects.
export CC
compile() {  # compile <name> <text>: an object named <name>.o
  printf '%s\n' "$2" >"$folder/$1.cc"
  $CXX -std=c++20 -O2 -fPIC -fvisibility=hidden -c "$folder/$1.cc" -o "$folder/$1.o"
}
compile plain 'namespace tegula { int f(int x) { static int y; return y += x; } }'
compile constructor 'int g(); int x = g();'
compile attribute '__attribute__((constructor)) static void f() { asm volatile(""); }'
for name in plain constructor attribute; do
  rm -f "$folder/lib$name.a"
  ar rcs "$folder/lib$name.a" "$folder/plain.o" "$folder/$name.o"
done
expect pass "" "$rules/object_rules.sh" constructors "$folder/libplain.a"
expect fail "init_array" "$rules/object_rules.sh" constructors "$folder/libconstructor.a"
expect fail "init_array" "$rules/object_rules.sh" constructors "$folder/libattribute.a"

compile isa_good 'namespace tegula::isa_avx2 {
  struct V { virtual ~V(); virtual int f(); }; V::~V() {} int V::f() { static int y; return y++; }
  template <class T> [[gnu::noinline]] T id(T x) { return x; } int f(int x) { return id(x); }
  namespace { int hidden; } int* g() { return &hidden; } }'
compile isa_weak 'namespace tegula { template <class T> [[gnu::noinline]] T id(T x) { asm(""); return x; } }
  namespace tegula::isa_avx2 { int f(int x) { return tegula::id(x); } }'
compile isa_std '#include <string>
  namespace tegula::isa_avx2 { void f(std::string& s, unsigned n) { for (; n; n--) s += std::to_string(n); } }'
compile isa_strong 'namespace tegula { int f(int x) { return x; } }'
compile isa_other 'namespace tegula::isa_avx512 { int f(int x) { return x; } }'
expect pass "" "$rules/object_rules.sh" isa avx2 "$folder/isa_good.o"
expect fail "tegula::id" "$rules/object_rules.sh" isa avx2 "$folder/isa_weak.o"
expect fail "std::" "$rules/object_rules.sh" isa avx2 "$folder/isa_std.o"
expect fail "tegula::f" "$rules/object_rules.sh" isa avx2 "$folder/isa_strong.o"
expect fail "isa_avx512" "$rules/object_rules.sh" isa avx2 "$folder/isa_other.o"

cat >"$folder/api.h" <<'END'
#define TEGULA_API __attribute__((visibility("default")))
TEGULA_API int tegula_one(int x);
TEGULA_API const char* tegula_two(int x,
                                  int y);
END
shared() {  # shared <name> <text> [option]: a library of a version script that exports everything
  printf '%s\n' "$2" >"$folder/$1.c"
  printf 'TEGULA_1 { global: *; };\n' >"$folder/map"
  $CC -shared -fPIC "-Wl,--version-script=$folder/map" "$folder/$1.c" -o "$folder/$1.so"
}
shared exact 'int tegula_one(int x) { return x; } int tegula_two(int x, int y) { return x + y; } static int f;'
shared more 'int tegula_one(int x) { return x; } int tegula_two(int x, int y) { return x + y; } int helper;'
shared less 'int tegula_one(int x) { return x; }'
expect pass "" "$rules/object_rules.sh" exports "$folder/exact.so" "$folder/api.h"
expect fail "helper: exported, but not declared" "$rules/object_rules.sh" exports "$folder/more.so" "$folder/api.h"
expect fail "tegula_two: declared in the header" "$rules/object_rules.sh" exports "$folder/less.so" "$folder/api.h"

# History of the lists of refusals.
history() {  # history <list>...: a repository with one commit a list (ids, comma-separated) and their cases
  tree=$folder/history
  rm -rf "$tree"
  mkdir -p "$tree/tests/cases/refusals" "$tree/tests/cases/table"
  git -C "$tree" init -q
  for list in "$@"; do
    echo "$list" | tr , '\n' | sed 's/$/ some cell/' >"$tree/tests/cases/refusals/cpu.txt"
    for id in $(echo "$list" | tr , ' '); do
      grep -qsF "\"id\":\"$id\"" "$tree/tests/cases/table/t.jsonl" || echo "{\"id\":\"$id\"}" >>"$tree/tests/cases/table/t.jsonl"
    done
    git -C "$tree" add .
    git -C "$tree" -c user.name=t -c user.email=t@t commit -q -m step
  done
}
history a a,b b
expect pass "" "$rules/refusal_history.sh" "$tree"
history a,b b a,b
expect fail "a left the list earlier" "$rules/refusal_history.sh" "$tree"
history a,b b
echo 'a some cell' >>"$tree/tests/cases/refusals/cpu.txt"
expect fail "a left the list earlier" "$rules/refusal_history.sh" "$tree"
history a
echo 'c some cell' >>"$tree/tests/cases/refusals/cpu.txt"
expect fail "does not add its case" "$rules/refusal_history.sh" "$tree"
history a,b b
echo 'a some cell' >"$tree/tests/cases/refusals/cuda.txt"
expect pass "" "$rules/refusal_history.sh" "$tree"
git -C "$tree" add . && git -C "$tree" -c user.name=t -c user.email=t@t commit -q -m list
echo 'b some cell' >>"$tree/tests/cases/refusals/cuda.txt"
expect fail "does not add its case" "$rules/refusal_history.sh" "$tree"
exit "$status"
