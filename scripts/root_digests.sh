#!/usr/bin/env bash
# Plays short runs on the CPU and prints a line `NAME DIGEST` for each: the digest of the
# weights that it ends with, as they are trained (the master of their manifest). Two builds that print the same lines train the same
# weights bit for bit; a change that should leave the arithmetic alone is held against the lines of
# the commit before it. Lines of machines whose numerics class differs may differ, and the class
# stands in the first line for that reason.
#
#   scripts/root_digests.sh [BINARY]     # build/tailrace; a minute on two cores
#   diff <(scripts/root_digests.sh OLD) <(scripts/root_digests.sh NEW)
set -euo pipefail
binary=$(realpath "${1:-"$(dirname "$0")/../build/tailrace"}")
cd "$(dirname "$0")/../configs"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# All parts of a run, and each once or twice: warm-up, steps, an evaluation, a checkpoint.
play() {
  local name=$1 config=$2 steps=4
  "$binary" launch "$config" --run-dir "$folder/$name" run.steps=$steps \
    rollout.prompts_per_step=16 eval.prompts=32 eval.interval_steps=2 checkpoint.interval_steps=2 \
    "${@:3}" >"$folder/$name.txt" 2>&1 || { cat "$folder/$name.txt" >&2; return 1; }
  value "$folder/$name/weights/p0-v$steps.json" master
}
# Of a key of a manifest, which holds it once.
value() { sed -n 's/.*"'"$2"'": *"\([^"]*\)".*/\1/p' "$1"; }

root=$(play quickstart quickstart.yaml sft.demonstrations=1000)
echo "class $(value "$folder/quickstart/weights/p0-v4.json" numerics_class)"
echo "quickstart $root"
echo "calculator $(play calculator calculator.yaml sft.demonstrations=1000)"
echo "mixed $(play mixed mixed.yaml sft.demonstrations=1000)"
echo "experts $(play experts quickstart.yaml model.create.experts=4 sft.demonstrations=1000)"
echo "bf16 $(play bf16 tinystories.yaml model.compute=bf16)"
