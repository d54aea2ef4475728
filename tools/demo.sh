#!/bin/sh
# Trains a small model on the bundled text, sets it beside a bigram and a trigram table, lets it write, and
# reports on its Gaussians. Called by `make demo`; fails when the model does not beat both tables.
set -eu
cd "$(dirname "$0")/.."
gma=build/bin/gma
data=data/tinyshakespeare/input.txt
run=${1:-runs/demo}

echo "Training on $data (1.1 million bytes of Shakespeare), two to four minutes on two cores."
echo
"$gma" train --preset demo --data "$data" --out "$run" --force
echo
"$gma" eval "$run" --data "$data" --split val --beat-baselines
echo
echo "What it writes after \"ROMEO:\""
echo
"$gma" generate "$run" --prompt "ROMEO:" --temperature 0.8 --seed 1
echo
echo "What its Gaussians do with 50,000 bytes of the text: usage and entropy of every head"
echo
"$gma" inspect "$run" --data "$data" --tokens 50000 --out "$run/report.html" >"$run/inspect.txt"
sed '/^$/,$d' "$run/inspect.txt"
cat <<END

This model has the options that the paper's plain form lacks: forget gate, learned temperature, short convolution and
output gate. Without them, so few steps bring a model to about a bigram table; see for yourself:

  $gma train --preset paper --data $data --out runs/paper --steps 400

What to try next:

  $gma generate $run --prompt "JULIET:" --temperature 0.6
  $gma train --data $data --out runs/longer            # 2000 steps
  $gma train --data YOUR-FILE --out runs/yours         # any text or binary file
  $gma plot $run --out runs/curves.svg               # several runs: one after the other
  $gma inspect $run --data YOUR-FILE --out report.html

What its Gaussians learnt is in $run/report.html: open it in any browser.
END
