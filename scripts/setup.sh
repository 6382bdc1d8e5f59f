#!/usr/bin/env bash
# Installs the Debian packages that Tailrace builds and runs with, or those that are named. Does nothing when all are
# there.
#
#   scripts/setup.sh --cross arm64     a compiler for that architecture and its libraries (docs/systems.md)
set -euo pipefail

packages=(build-essential cmake ninja-build ccache mold pkg-config git
  libfmt-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev libboost-dev libzmq3-dev cppzmq-dev
  flatbuffers-compiler libflatbuffers-dev libgloo-dev libgtest-dev libgmock-dev)

cross=""
if [ "${1:-}" = --cross ]; then
  cross=${2:?setup: --cross wants an architecture of Debian, such as arm64}
  # Headers alone, and programs, are for every architecture.
  for i in "${!packages[@]}"; do
    case ${packages[i]} in
      build-essential) packages[i]=crossbuild-essential-$cross ;;
      libcli11-dev | nlohmann-json3-dev) ;;
      lib*-dev | zlib1g-dev | cppzmq-dev) packages[i]+=:$cross ;;
    esac
  done
  packages+=(qemu-user-static)
elif [ $# -gt 0 ]; then
  packages=("$@")
fi

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
[ -z "$cross" ] || $sudo dpkg --add-architecture "$cross"
$sudo apt-get update -qq
# Some libraries exclude themselves of another architecture: better no cross build than no build.
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${cross:+--no-remove} \
  "${missing[@]}" >/dev/null
