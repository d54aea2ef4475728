#!/bin/sh
# Fails when folders and manifests disagree, or when a part includes what it may not see.
#   tools/check_layout.sh [BUILD]    with BUILD, also the names that the static libraries define
set -u
build=${1:-}
case $build in '' | /*) ;; *) build=$PWD/$build ;; esac
cd "$(dirname "$0")/.." || exit 2
problems=0
problem() {
    echo "check_layout: $*" >&2
    problems=1
}

# rows FILE: the first words of its X(...) rows
rows() { sed -n 's/^X(\([a-z0-9_]*\).*/\1/p' "$1"; }
has_row() { rows "$1" | grep -qx "$2"; }

# ---- Mixers: src/mixers/<name>/ <-> mixers.inc
for folder in src/mixers/*/; do
    name=$(basename "$folder")
    has_row src/mixers/mixers.inc "$name" || problem "$folder has no row in src/mixers/mixers.inc"
done
for name in $(rows src/mixers/mixers.inc); do
    [ -d "src/mixers/$name" ] || problem "src/mixers/mixers.inc: X($name) has no folder src/mixers/$name"
done

# ---- Verbs: cli/cmd_<verb>.c <-> cmds.inc
for file in cli/cmd_*.c; do
    name=$(basename "$file" .c)
    has_row cli/cmds.inc "${name#cmd_}" || problem "$file has no row in cli/cmds.inc"
done
for name in $(rows cli/cmds.inc); do
    [ -f "cli/cmd_$name.c" ] || problem "cli/cmds.inc: X($name) has no file cli/cmd_$name.c"
done

# ---- CPU tiers: a header src/simd/<tier>.h, a row in isa.inc and flags in cmake/isa.cmake belong together. A row alone
#      is a tier that is known by name only.
flags_of() { grep -q "^set(GMA_ISA_FLAGS_$1 " cmake/isa.cmake; }
for file in src/simd/*.h; do
    name=$(basename "$file" .h)
    [ "$name" = math ] && continue # shared by the tiers
    has_row src/core/isa.inc "$name" || problem "$file has no row in src/core/isa.inc"
    flags_of "$name" || problem "$file has no GMA_ISA_FLAGS_$name in cmake/isa.cmake"
done
for name in $(sed -n 's/^set(GMA_ISA_FLAGS_\([a-z0-9]*\) .*/\1/p' cmake/isa.cmake); do
    [ -f "src/simd/$name.h" ] || problem "cmake/isa.cmake: the tier $name has no src/simd/$name.h"
done
for name in $(rows src/core/isa.inc); do
    grep -q "^set(GMA_ALL_TIERS .*\<$name\>" cmake/isa.cmake || problem "cmake/isa.cmake: GMA_ALL_TIERS lacks $name"
done

# ---- Who may include what
# may FOLDER GLOB ALLOWED: every #include "..." of those files starts with one of ALLOWED or names a file beside it
may() {
    folder=$1 allowed=$2
    find "$folder" -name '*.[ch]' 2>/dev/null | while read -r file; do
        sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$file" | while read -r included; do
            case $included in
            */*) echo "$included" | grep -qE "^($allowed)/" || echo "$file includes $included" ;;
            *) [ -f "$(dirname "$file")/$included" ] || echo "$file includes $included" ;;
            esac
        done
    done
}
found=$(
    may src/core 'gma|core|kernels' # dispatch fills the table of kernels
    may src/simd 'gma|core|simd'
    may src/kernels 'gma|core|simd|kernels'
    # the contract of a mixer (struct gma_mixer and its table) is the engine's too
    may src/engine 'gma|core|simd|kernels|engine' | grep -v ' includes mixers/mixer_impl.h$'
    may src/mixers 'gma|core|simd|kernels|engine|mixers'
    for folder in layers models train data io report inspect theory; do
        may src/$folder 'gma|simd|layers|models|train|data|io|report|inspect|theory'
    done
    may cli 'gma|cli'
    may examples 'gma'
    grep -nE '^ *# *include *<(jansson|dnnl|oneapi)' -r src/core src/simd src/kernels src/engine src/mixers cli examples
)
[ -z "$found" ] || problem "included from where it may not be:
$found"

# ---- Names: gma_ is public, gmai_ and gmal_ are the insides of libgma and libgma_lm
names() {
    nm -g --defined-only "$build/lib/$1.a" 2>/dev/null | awk 'NF == 3 {print $3}' | grep -vE "^($2)" | sort -u
}
if [ -n "$build" ] && command -v nm >/dev/null 2>&1; then
    [ -f "$build/lib/libgma.a" ] || problem "there is no $build/lib/libgma.a"
    found=$(names libgma 'gma_|gmai_|__|_?_?asan|_?_?odr')
    [ -z "$found" ] || problem "libgma.a defines names without its prefix: $found"
    if [ -f "$build/lib/libgma_lm.a" ]; then
        found=$(names libgma_lm 'gma_|gmal_|__|_?_?asan|_?_?odr')
        [ -z "$found" ] || problem "libgma_lm.a defines names without its prefix: $found"
    fi
fi

exit "$problems"
