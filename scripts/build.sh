#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset when it is not yet, and builds targets of it. Usage: build.sh <preset> [target...]
# Preset python: build/ with the Python extension, of the Python in build/venv.
# TEGULA_WERROR=1 makes warnings errors; TEGULA_JOBS is the number of compilers at once.
set -eu
cd "$(dirname "$0")/.."
preset=$1
shift
case $preset in
  release | bench | python) folder=build ;;
  *) folder=build-$preset ;;
esac
unset MAKEFLAGS MFLAGS MAKELEVEL  # the jobserver of an outer make is not for cmake's own make

options=()
configure=0
case $preset in bench | python) configure=1 ;; esac  # it may find a release folder
if [ "$preset" = python ]; then
  preset=release
  options+=(-DTEGULA_PYTHON=ON "-DPython_EXECUTABLE=$PWD/build/venv/bin/python")
fi
if [ "${TEGULA_WERROR:-0}" != 0 ]; then
  options+=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)
  configure=1
fi
if command -v ccache >/dev/null 2>&1; then
  options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
# cmake_install.cmake is written last: it tells a finished configuration from an interrupted one.
[ -f "$folder/cmake_install.cmake" ] || configure=1
# A checkout that was moved or copied together with its build folder starts afresh.
if [ -f "$folder/CMakeCache.txt" ] &&
  ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$(pwd -P)" "$folder/CMakeCache.txt"; then
  options+=(--fresh)
  configure=1
fi
if [ "$configure" = 1 ]; then
  mkdir -p "$folder"
  if ! cmake --preset "$preset" "${options[@]}" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    exit 1
  fi
fi
targets=()
[ $# = 0 ] || targets=(--target "$@")
cmake --build "$folder" -j "${TEGULA_JOBS:-$(nproc)}" "${targets[@]}"
