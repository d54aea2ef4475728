#!/bin/sh
# WikiText-103 for configs/wikitext103-paper: checks the files of a folder and makes token files of them.
#   tools/wikitext103.sh FOLDER VOCABULARY [OUT]
# FOLDER holds wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens of wikitext-103-v1; VOCABULARY is a folder with
# vocab.bpe and encoder.json (GPT-2's, or what `gma data learn` made); OUT is data/wikitext-103 without one.
# Nothing is written unless all three files are the published ones. GMA names the program (build/bin/gma without it).
set -eu
[ $# -ge 2 ] && [ $# -le 3 ] || { sed -n '2,7s/^# *//p' "$0" >&2; exit 2; }
folder=$1 vocabulary=$2 out=${3:-data/wikitext-103} gma=${GMA:-build/bin/gma}

# check PART SHA-1 TOKENS: tokens are words with one <eos> a line. The sums are those that GluonNLP publishes for the files of
# wikitext-103-v1.zip (src/gluonnlp/data/corpora/wikitext.py).
check() {
    file=$folder/wiki.$1.tokens
    [ -f "$file" ] || { echo "wikitext103: $file is not there" >&2; exit 1; }
    sum=$(sha1sum <"$file" | cut -d' ' -f1)
    [ "$sum" = "$2" ] && return
    counts=$(wc -lw <"$file" | awk '{print $1 + $2}')
    echo "wikitext103: $file has the SHA-1 $sum and $counts tokens; the published file has $2 and $3" >&2
    exit 1
}
check train b7497e2dfe77e72cfef5e3dbc61b7b53712ac211 103227021
check valid c326ac59dc587676d58c422eb8a03e119582f92b 217646
check test 8a5befc548865cec54ed4273cf87dbbad60d1e47 245569

mkdir -p "$out"
for part in train valid test; do
    "$gma" data encode "$folder/wiki.$part.tokens" "$out/$part.tokens" --vocab "$vocabulary"
done
