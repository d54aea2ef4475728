#!/bin/sh
# Trains a small model on the bundled text and shows what it learnt. Called by `make demo`.
set -eu
cd "$(dirname "$0")/.."
run=${1:-runs/demo}
build/bin/gma train --preset demo --data data/tinyshakespeare/input.txt --out "$run" --force
build/bin/gma generate "$run" --prompt "ROMEO:"
