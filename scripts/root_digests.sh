#!/usr/bin/env bash
# Plays short runs on the CPU and prints a line `NAME DIGEST` for each: the digest of the weights that it ends with, as
# they are trained (the master of their manifest). Two builds that print the same lines train the same weights bit for
# bit. A change that should leave the arithmetic alone is held against the lines of the commit before it. Lines of
# machines whose numerics class differs may differ, and the class stands in the first line for that reason.
#
#   scripts/root_digests.sh [BINARY [RECORDED]]     # build/tailrace; a minute on two cores
#   diff <(scripts/root_digests.sh OLD recorded) <(scripts/root_digests.sh NEW recorded)
#
# Batches of a run that samples while it trains depend on time. So such runs are recorded once, in the folder RECORDED
# (where there is none: by the first binary that is given it), killed before their first checkpoint, and continued by
# each binary, which must train the batches of the journal again from the start. A change of the law or of the archive
# format, which refuses the journal, needs a record by a build that stands between.
set -euo pipefail
shopt -s inherit_errexit
binary=$(realpath "${1:-"$(dirname "$0")/../build/tailrace"}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
recorded=$(realpath -m "${2:-$folder/recorded}")
mkdir -p "$recorded"
cd "$(dirname "$0")/../configs"

# value FILE KEY: of a key that a manifest holds once.
value() { sed -n 's/.*"'"$2"'": *"\([^"]*\)".*/\1/p' "$1"; }
# line RUN VERSION: the name of a run and the digest of a version.
line() { echo "$(basename "$1") $(value "$1/weights/p0-v$2.json" master)"; }

launch() {
  "$binary" launch --run-dir "$folder/$1" "${@:2}" >"$folder/$1.txt" 2>&1 ||
    { cat "$folder/$1.txt" >&2; return 1; }
}

# All parts of a run, and each once or twice: warm-up, steps, an evaluation, a checkpoint.
play() {
  launch "$1" "${@:2}" run.steps=4 rollout.prompts_per_step=16 eval.prompts=32 eval.interval_steps=2 \
    checkpoint.interval_steps=2
  line "$folder/$1" 4
}

# A run whose batches depend on time: recorded when it is not, then trained again by its journal.
again() {
  local name=$1
  if [ ! -d "$recorded/$name" ]; then
    setsid "$binary" launch --run-dir "$folder/record" "${@:2}" run.steps=6 rollout.prompts_per_step=16 \
      eval.prompts=32 checkpoint.interval_steps=100 weights.keep=10 >"$folder/$name.txt" 2>&1 &
    local leader=$!
    for _ in $(seq 600); do
      [ ! -e "$folder/record/weights/p0-v4.json" ] && kill -0 $leader 2>/dev/null || break
      sleep 0.1
    done
    kill -9 -- -$leader 2>/dev/null || true
    wait $leader 2>/dev/null || true
    [ -e "$folder/record/weights/p0-v4.json" ] || { cat "$folder/$name.txt" >&2; return 1; }
    [ ! -e "$folder/record/weights/p0-v6.json" ] ||
      { echo "$name: it was done before it could be killed" >&2; return 1; }
    mv "$folder/record" "$recorded/$name"
  fi
  cp -r "$recorded/$name" "$folder/$name"
  touch "$folder/begin"
  launch "$name"
  [ "$folder/$name/weights/p0-v4.json" -nt "$folder/begin" ] ||
    { echo "$name: version 4 was not trained again" >&2; return 1; }
  line "$folder/$name" 4
}

few=sft.demonstrations=1000
first=$(play quickstart quickstart.yaml $few)
echo "class $(value "$folder/quickstart/weights/p0-v4.json" numerics_class)"
echo "$first"
play calculator calculator.yaml $few
play mixed mixed.yaml $few
play experts quickstart.yaml model.create.experts=4 $few
play bf16 tinystories.yaml model.compute=bf16
play critic quickstart.yaml algo.name=ppo critic.warmup_steps=1 $few
play adapter tinystories.yaml lora.rank=4 lora.alpha=8
play updates quickstart.yaml train.minibatches_per_step=4 train.ppo_epochs=2 $few
play ranks quickstart.yaml train.ranks=2 train.gradient_slots=2 $few
play critic_ranks quickstart.yaml train.ranks=2 train.gradient_slots=2 algo.name=ppo $few
play reference quickstart.yaml algo.kl.coef=0.02 $few

cat >"$folder/supervised.yaml" <<END
model: {path: $PWD/../tests/data/models/stories260K}
sft:
  data: $folder/rows.jsonl
  batch_tokens: 512
  optim: {lr: 1.0e-3}
rollout: {max_context_tokens: 256}
END
sed 's/^/{"prompt": "Once upon a time", "completion": "/; s/$/ walked home."}/' <(seq 200) >"$folder/rows.jsonl"
launch supervised "$folder/supervised.yaml"
line "$folder/supervised" 0

again stale async.yaml algo.correction.kind=mask algo.correction.level=sequence
again streaming async.yaml scheduler.mode=streaming train.minibatches_per_step=1
again partial async.yaml scheduler.mode=partial train.minibatches_per_step=2
if python3 -c 'import openai' 2>/dev/null || [ -d "$recorded/agent" ]; then
  again agent agent.yaml scheduler.mode=async
else
  echo "agent skipped: python3 has no openai" >&2
fi
