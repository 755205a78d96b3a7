#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing on Debian 12, Debian 13 and Ubuntu 24.04. Usage: bootstrap.sh [test|bench|python|all]
#   test (default): what `make build`, `make demo` and `make test` need
#   bench:          and what `make bench` needs
#   python:         and what the Python tools need
#   all:            and what `make test-all` needs
# Asks apt only when something is missing. Without root or sudo it names the packages and fails.
# TEGULA_BOOTSTRAP=0 turns it off, for machines whose tools come from elsewhere.
set -u
[ "${TEGULA_BOOTSTRAP:-1}" != 0 ] || exit 0
level=${1:-test}
missing=""

need_command() {  # need_command <command> <package>
  command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need_file() {  # need_file <path below a prefix> <package>
  local prefix
  local IFS=':;'
  for prefix in /usr /usr/local ${CMAKE_PREFIX_PATH:-}; do
    [ ! -e "$prefix/$1" ] || return 0
  done
  missing="$missing $2"
}

# The newest clang that has its fuzzer runtime, or, when none is installed, the newest that apt offers.
fuzz_clang() {
  local version
  for version in 19 18 16; do
    if command -v "clang++-$version" >/dev/null 2>&1 &&
      compgen -G "/usr/lib/llvm-$version/lib/clang/*/lib/*/libclang_rt.fuzzer*.a" >/dev/null; then
      echo "$version"
      return
    fi
  done
  return 1
}
if [ "$level" = print-fuzz-clang ]; then
  fuzz_clang
  exit
fi

collect() {
  missing=""
  need_command c++ g++
  need_command cmake cmake
  need_command make make
  need_command pkg-config pkg-config
  need_file include/CLI/CLI.hpp libcli11-dev
  need_file include/fmt/core.h libfmt-dev
  need_file include/nlohmann/json.hpp nlohmann-json3-dev
  need_file include/gtest/gtest.h libgtest-dev
  [ "$level" != bench ] && [ "$level" != all ] || need_file include/benchmark/benchmark.h libbenchmark-dev
  if [ "$level" = python ] || [ "$level" = all ]; then
    need_command python3 python3
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
    python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
      >/dev/null 2>&1 || missing="$missing python3-dev"
  fi
  if [ "$level" = all ]; then
    need_command aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
    need_command qemu-aarch64 qemu-user
    if ! fuzz_clang >/dev/null; then
      local version
      for version in 19 18 16; do
        apt-cache show "clang-$version" >/dev/null 2>&1 && break
      done
      missing="$missing clang-$version libclang-rt-$version-dev"
    fi
  fi
}

collect
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "tegula needs these packages (Debian's names), and this machine has no apt-get:$missing" >&2
  exit 1
fi

if [ "$(id -u)" = 0 ]; then
  as_root=()
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  as_root=(sudo)
else
  echo "tegula needs packages that only root may install. Run as root:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt update >"$log" 2>&1 || true  # a stale list may still serve; the install decides
collect                          # with a fresh list, the clang that apt offers may be another
echo "installing:$missing"
# shellcheck disable=SC2086  # a list of package names
if ! apt install -y --no-install-recommends $missing >>"$log" 2>&1; then
  cat "$log" >&2
  echo "apt-get could not install:$missing" >&2
  exit 1
fi
collect
if [ -n "$missing" ]; then
  echo "installed, but still not found:$missing" >&2
  exit 1
fi
