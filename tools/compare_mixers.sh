#!/bin/sh
# Trains the demo model once with each causal mixer and with two hybrids, by the same command, and prints a table.
#   tools/compare_mixers.sh [options of gma train]        GMA=program DATA=file RUNS=folder
set -eu
cd "$(dirname "$0")/.."
gma=${GMA:-build/bin/gma}
data=${DATA:-data/tinyshakespeare/input.txt}
runs=${RUNS:-runs/mixers}

number() { sed -n "s/.*\"$1\": \([-0-9.e+]*\).*/\1/p" | tail -n 1; }

row() {
    name=$1
    shift
    out=$runs/$name
    "$gma" train --preset demo --data "$data" --out "$out" --force "$@" >"$runs/$name.log" || {
        tail -n 3 "$runs/$name.log" >&2
        exit 1
    }
    loss=$("$gma" eval "$out" --data "$data" --split val --json | number loss)
    state=$("$gma" generate "$out" --length 8 --json | number state_bytes)
    parameters=$(sed -n 's/^\([0-9]*\) parameters.*/\1/p' "$runs/$name.log")
    speed=$(number tokens_per_second <"$out/metrics.jsonl")
    printf '| %-28s | %10s | %8.4f | %8.0f | %8s |\n' "$name" "$parameters" "$loss" "$speed" "$state"
}

mkdir -p "$runs"
printf '| layers | parameters | validation loss, nats/byte | training tokens/s | state, bytes |\n|---|---:|---:|---:|---:|\n'
for mixer in gma linear performer softmax mamba; do
    row "$mixer" --mixer "$mixer" "$@"
done
row softmax-window-64 --mixer softmax --window 64 "$@"
row gma-x3-softmax-window-128 --layers 3xgma,softmax:window=128 "$@"
row mamba-softmax-window-64 --layers mamba,softmax:window=64,mamba,softmax:window=64 "$@"
