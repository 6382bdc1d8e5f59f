#!/usr/bin/env bash
# Compiles the binary in an empty folder, without a compiler cache, and holds what it costs against a
# budget. Its unit is the user time of compiling scripts/reference_compile.cc, which nothing of the
# project changes, so that the figure means the same on every machine. Both run as many compilers at
# once as there are cores. Exit status 1: the build costs more than the budget.
#
# The budget is that of a build without CUDA. What nvcc adds has one of its own, where it is found.
#
#   scripts/build_budget.sh [BUDGET]     # in reference compiles
set -euo pipefail
cd "$(dirname "$0")/.."
budget=${1:-85}
jobs=$(nproc)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TIMEFORMAT=%U

compile_reference() {
  local job
  for _ in 1 2 3; do
    for job in $(seq "$jobs"); do
      { time g++ -std=c++20 -O2 -c scripts/reference_compile.cc -o "$folder/reference-$job.o"; } \
        2>>"$folder/reference-$job.txt" &
    done
    wait
  done
}

# As `make quickstart` builds it.
cmake --preset release -B "$folder/build" -DTAILRACE_CUDA=OFF -DTAILRACE_ISAS=native >/dev/null
# In stages, with the reference between them: a shared machine is faster or slower from minute to
# minute.
compile_reference
for target in tailrace_kernels tailrace_trainer tailrace_scheduler_service tailrace_cli_roles tailrace; do
  { time CCACHE_DISABLE=1 ninja -C "$folder/build" -j "$jobs" "$target" >"$folder/log"; } 2>>"$folder/user" ||
    { cat "$folder/log"; exit 1; }
  compile_reference
done

reference=$(sort -n "$folder"/reference-*.txt | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}')
awk -v reference="$reference" -v budget="$budget" '{ user += $1 } END {
  printf "build: %.1f reference compiles (%.0f s of user time, one takes %.2f s); budget %s\n",
         user / reference, user, reference, budget
  exit user / reference > budget
}' "$folder/user" && status=0 || status=1
# In user seconds, since nvcc compiles none of the reference.
nvcc_budget=85
cmake --preset release -B "$folder/cuda" >/dev/null
if ninja -C "$folder/cuda" -t query kernels/cuda/libtailrace_kernels_cuda.a | grep -q '\.cu\.o$'; then
  # Its commands alone: ninja would build what the objects wait for, too.
  ninja -C "$folder/cuda" -t commands kernels/cuda/libtailrace_kernels_cuda.a | grep '\.cu ' >"$folder/nvcc"
  export CCACHE_DISABLE=1
  nvcc_user=$({ time xargs -d '\n' -P "$jobs" -n 1 bash -c <"$folder/nvcc" >"$folder/log" 2>&1; } 2>&1 | tail -1)
  awk -v user="$nvcc_user" -v budget="$nvcc_budget" 'BEGIN {
    printf "nvcc: %.0f s of user time; budget %s\n", user, budget; exit user > budget }' || status=1
fi
echo "the dearest objects, in seconds:"
# Columns: start and end in ms, mtime, output, hash.
awk 'NR > 1 {printf "%6.1f  %s\n", ($2 - $1) / 1000, $4}' "$folder/build/.ninja_log" |
  sort -rn | awk 'NR <= 10'
exit $status
