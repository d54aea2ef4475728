#!/bin/sh
# Counts the instructions of the operator's hot functions under callgrind and holds them to a recorded budget (+5 %).
#   check.sh PROGRAM COMPILER BUILD_TYPE AVX2 FOLDER [record]
# COMPILER is a key of budget.txt; AVX2 is 1 when the tier is built; FOLDER may be written to.
# With `record`, prints the rows for budget.txt instead (the C library's own functions left out: they are not ours).
# Exit code 77: skipped, and why.
set -u
program=$1 compiler=$2 build_type=$3 avx2=$4 folder=$5 record=${6:-}
budget=$(dirname "$0")/budget.txt

skip() {
    echo "skipped: $1"
    exit 77
}
[ "$avx2" = 1 ] || skip "this build has no AVX2 tier"
[ "$build_type" = Release ] || skip "the budget is that of a Release build, this one is \"$build_type\""
command -v valgrind >/dev/null 2>&1 || skip "valgrind is not installed"
grep -qw avx2 /proc/cpuinfo 2>/dev/null || skip "this CPU has no AVX2, so valgrind has none either"
[ -n "$record" ] || grep -q "^$compiler " "$budget" ||
    skip "no budget is recorded for $compiler (there are: $(awk '/^[^#]/ { print $1 }' "$budget" | sort -u | tr '\n' ' '))"

mkdir -p "$folder" || exit 1
failed=0
for mode in forward backward step; do
    out=$folder/$mode.callgrind
    if ! GMA_ISA=avx2 OMP_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file="$out" --compress-strings=no \
        --compress-pos=no --collect-atstart=no --toggle-collect="gma_mixer_$mode" "$program" "$mode" >"$folder/log" 2>&1; then
        cat "$folder/log"
        exit 1
    fi
    # What each function did itself: the line after calls= is what it had others do.
    awk -v record="$record" -v compiler="$compiler" -v mode="$mode" '
        FILENAME == ARGV[1] { if ($1 == compiler && $2 == mode) allowed[$3] = $4; next }
        /^fn=/ { fn = substr($0, 4); sub(/\047[0-9]+$/, "", fn) }
        /^calls=/ { others = 1; next }
        /^[0-9]/ { if (others) others = 0; else { did[fn] += $2; did["total"] += $2 } }
        END {
            if (did["total"] == 0) { print mode ": nothing was counted"; exit 1 }
            if (record != "") {
                for (fn in did) if (fn !~ /^_/ && did[fn] >= 0.03 * did["total"]) print compiler, mode, fn, did[fn] | "sort -k4nr"
                exit 0
            }
            bad = 0
            for (fn in allowed) {
                verdict = did[fn] == 0 ? "GONE: record anew" : did[fn] > 1.05 * allowed[fn] ? "TOO MANY" : \
                          did[fn] < 0.95 * allowed[fn] ? "fewer: record anew to keep the gain" : "ok"
                printf "%-9s %-32s %12d of %12d (%+.1f %%)  %s\n", mode, fn, did[fn], allowed[fn], \
                       100 * (did[fn] / allowed[fn] - 1), verdict
                if (verdict ~ /^(GONE|TOO)/) bad = 1
            }
            exit bad
        }' "$budget" "$out" || failed=1
done
exit "$failed"
