#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a folder of its own, and builds and runs two of the examples, taken out of the tree, with
# what find_package or pkg-config says. Usage: package_test.sh cmake|pkg-config shared|static <build folder>
set -eu
finder=$1
kind=$2
build=$(cd "$3" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL
CC=${CC:-cc}
CXX=${CXX:-c++}

project=$folder/project
mkdir "$project" "$folder/build"
cp "$here/outside/CMakeLists.txt" "$here/../../examples/forward.c" "$here/../../examples/forward.cc" "$project"

prefix=$folder/prefix
cmake --install "$build" --prefix "$prefix" >"$folder/install.log" || { cat "$folder/install.log"; exit 1; }

if [ "$finder" = cmake ]; then
  # A CMake package may be moved after its installation.
  mv "$prefix" "$folder/moved"
  target=tegula::tegula
  [ "$kind" = shared ] || target=tegula::tegula_static
  cmake -S "$project" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/moved" -DTEGULA_TARGET=$target \
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >"$folder/log" 2>&1 &&
    cmake --build "$folder/build" >>"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
  "$folder/moved/bin/tegula" --help >/dev/null
else
  library_folder=$(dirname "$(find "$prefix" -name tegula.pc)")
  export PKG_CONFIG_PATH=$library_folder
  export LD_LIBRARY_PATH
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir tegula)
  cflags=$(pkg-config --cflags tegula)
  if [ "$kind" = shared ]; then
    libs=$(pkg-config --libs tegula)
  else
    # With both libraries in one folder the linker would take the shared one.
    libs=$(pkg-config --libs --static tegula | sed 's/-ltegula/-l:libtegula.a/')
  fi
  # shellcheck disable=SC2086  # lists of options
  {
    $CC -Wall -Wextra -Werror -std=c11 $cflags "$project/forward.c" -o "$folder/build/forward_c" $libs -lm
    $CXX -Wall -Wextra -Werror -std=c++20 $cflags "$project/forward.cc" -o "$folder/build/forward_cc" $libs
  }
fi

for program in forward_c forward_cc; do
  needs=$(readelf -d "$folder/build/$program" | grep -c 'NEEDED.*libtegula\.so\.' || true)
  if { [ "$kind" = shared ] && [ "$needs" != 1 ]; } || { [ "$kind" = static ] && [ "$needs" != 0 ]; }; then
    echo "$program needs libtegula.so $needs times, but it is the $kind one"
    exit 1
  fi
  "$folder/build/$program" >/dev/null
done
