#!/usr/bin/env bash
# Installs the Debian packages that Tailrace builds and runs with, or those that are named. Does nothing when all are
# there.
set -euo pipefail

packages=(build-essential cmake ninja-build ccache mold pkg-config git
  libfmt-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev libboost-dev libzmq3-dev cppzmq-dev
  flatbuffers-compiler libflatbuffers-dev libgloo-dev libgtest-dev libgmock-dev)

[ $# -eq 0 ] || packages=("$@")

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: run as root or install sudo; missing packages: ${missing[*]}" >&2; exit 1; }
  sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
