#!/usr/bin/env bash
# Measures the comments of the product sources, to see whether prose stays plain: the share of
# comment lines among the lines that are not blank, in headers and in sources, and how many blocks
# begin with a word that most often stands for a missing subject (Of, What, Those, Who, So, That).
# A block is a run of lines that are comments alone; comments behind code do not count. The figures
# are for reviews, and nothing fails by them.
#
#   scripts/comment_blocks.sh            # the figures, one a line
#   scripts/comment_blocks.sh --list     # those blocks, as FILE:LINE: first line
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# == 0 || ($# == 1 && $1 == --list) ]] || { echo "usage: scripts/comment_blocks.sh [--list]" >&2; exit 2; }

git ls-files kernels core sandbox reward rollout trainer scheduler cli include |
  grep -E '\.(h|cuh|inc|cc|cu)$' |
  xargs awk -v list="${1:-}" '
    FNR == 1 { in_block = 0; kind = FILENAME ~ /\.(h|cuh|inc)$/ ? "headers" : "sources" }
    /^[ \t]*$/ { in_block = 0; next }
    { lines[kind]++ }
    !/^[ \t]*\/\// { in_block = 0; next }
    {
      comments[kind]++
      if (in_block) next
      in_block = 1
      blocks++
      if ($0 !~ /^[ \t]*\/\/+ *(Of|What|Those|Who|So|That)([^A-Za-z]|$)/) next
      clipped++
      if (list != "") { sub(/^[ \t]*/, ""); print FILENAME ":" FNR ": " $0 }
    }
    END {
      if (list != "") exit
      for (i = 1; i <= 2; i++) {
        kind = i == 1 ? "headers" : "sources"
        printf "comment lines in %s: %.1f %% of %d\n", kind, 100 * comments[kind] / lines[kind], lines[kind]
      }
      printf "comment blocks: %d\n", blocks
      printf "blocks that begin with Of, What, Those, Who, So or That: %.1f %% (%d)\n", 100 * clipped / blocks, clipped
    }'
