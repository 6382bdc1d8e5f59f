#!/usr/bin/env bash
# Puts the peers under build/peers: a Python environment with exactly requirements.txt, and with
# `setup.sh llama` also llama.cpp, compiled for this CPU (tens of minutes on two cores).
# Does nothing that is done already. Needs python3 with venv, pip's package index, and for llama.cpp cmake, ninja and g++.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
peers=$here/../../build/peers

# llama.cpp comes out of a source package that carries it whole, so that one package index and one
# digest pin it (llama.cpp 0c1e57098), and a machine that reaches no git server can measure it too.
llama_package=llama-cpp-python==0.3.36
llama_archive=llama_cpp_python-0.3.36
llama_digest=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

fail() {
  echo "error: $1" >&2
  exit 2
}

install_python() {
  [ -x "$peers/bin/python" ] || python3 -m venv "$peers" || fail "cannot make $peers; install python3-venv"
  "$peers/bin/pip" install --quiet --requirement "$here/requirements.txt" ||
    fail "pip cannot install bench/peers/requirements.txt"
}

install_llama() {
  local at=$peers/llama.cpp
  mkdir -p "$at"
  if [ ! -f "$at/$llama_archive.tar.gz" ]; then
    "$peers/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$at" "$llama_package" ||
      fail "llama.cpp cannot be had: pip finds no source package $llama_package"
  fi
  echo "$llama_digest  $at/$llama_archive.tar.gz" | sha256sum --check --quiet ||
    fail "$at/$llama_archive.tar.gz is not the archive that was pinned; remove it and try again"
  tar --extract --gzip --skip-old-files --file "$at/$llama_archive.tar.gz" --directory "$at" \
    "$llama_archive/vendor/llama.cpp"
  cmake -S "$at/$llama_archive/vendor/llama.cpp" -B "$at/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_USE_PREBUILT_UI=OFF
  cmake --build "$at/build" --target llama-batched-bench
}

case "${1:-}" in
  "") install_python ;;
  llama) install_python && install_llama ;;
  *) fail "setup.sh takes nothing, or 'llama'" ;;
esac
