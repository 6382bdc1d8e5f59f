#!/usr/bin/env bash
# Prints the reason of each test that failed in the last run of ctest: the lines around each failure,
# or the last lines of a test that was killed.
#
#   scripts/failed_tests.sh [BUILD]      # build
folder=${1:-build}/Testing/Temporary
list=$folder/LastTestsFailed.log log=$folder/LastTest.log
[[ -s $list && -f $log ]] || exit 0
# ctest leaves the list of an earlier run where the last one had no failure.
(($(stat -c %Y "$log") - $(stat -c %Y "$list") > 5)) && exit 0
awk -v most=30 '
  FNR == NR { sub(/^[0-9]+:/, ""); failed[$0] = 1; next }
  # A test is "1/3448 Testing: NAME"; its output stands between "Output:" with a line below and
  # "<end of output>".
  sub(/^[0-9]+\/[0-9]+ Testing: /, "") {
    name = $0
    lines = told = kept = inside = 0
    if (name in failed) printf "\n%s\n", name
    next
  }
  !(name in failed) { next }
  /^<end of output>/ {
    for (i = told ? kept : (kept > 12 ? kept - 12 : 0); i < kept; ++i) print "  " last[i % 12]
    inside = 0
  }
  /^Test time =/ { print "  " $0 }
  /^Output:/ { inside = 1; getline; next }
  !inside { next }
  /^\[  FAILED  \]/ { lines = 0 }
  / Failure$|check failed|exception|Sanitizer:|runtime error:/ { lines = 8 }
  lines > 0 && told < most { print "  " $0; --lines; ++told }
  { last[kept++ % 12] = $0 }
' "$list" "$log"
