#!/usr/bin/env bash
# What the tests that failed last have said: the lines of each that a person needs, behind thousands
# of others.
#
#   scripts/failed_tests.sh [BUILD]      # build
folder=${1:-build}/Testing/Temporary
[ -s "$folder/LastTestsFailed.log" ] || exit 0
awk -v most=30 '
  FNR == NR { sub(/^[0-9]+:/, ""); failed[$0] = 1; next }
  # A test is "1/3448 Testing: NAME", and its output follows.
  sub(/^[0-9]+\/[0-9]+ Testing: /, "") {
    name = $0
    lines = told = 0
    if (name in failed) printf "\n%s\n", name
  }
  !(name in failed) { next }
  /^\[  FAILED  \]|^<end of output>/ { lines = 0 }
  / Failure$|check failed|exception|Sanitizer:|^Test timeout|SIG[A-Z]+/ { lines = 8 }
  lines > 0 && told < most { print "  " $0; --lines; ++told }
' "$folder/LastTestsFailed.log" "$folder/LastTest.log"
