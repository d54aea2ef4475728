#!/bin/sh
# Installs into a folder of its own, then uses it as a stranger would: pkg-config and find_package, shared and static.
#   run.sh CMAKE BUILD SOURCE CC LIBDIR HAVE_LM
set -eu
cmake=$1 build=$2 source=$3 cc=$4 libdir=$5 have_lm=$6

work=$(mktemp -d "${TMPDIR:-/tmp}/gma-install-XXXXXX")
trap 'rm -rf "$work"' EXIT
say() { printf '%s\n' "$*"; }

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
# A tree that is moved must still work.
mv "$work/first" "$work/prefix"
prefix=$work/prefix lib=$work/prefix/$libdir
PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH

examples="operator_min mixer stream"
model=""
if [ "$have_lm" = 1 ]; then
    [ -f "$source/examples/generate.c" ] && examples="$examples generate"
    [ -d "$source/models/shakespeare-gma" ] && model=$source/models/shakespeare-gma
fi

# run_example PROGRAM: an example that needs a model runs when there is one.
run_example() {
    case $1 in
    *generate*)
        # Without a model, that it says so is all there is to see.
        if [ -n "$model" ]; then
            LD_LIBRARY_PATH=$lib "$1" "$model"
        else
            LD_LIBRARY_PATH=$lib "$1" "$work/nothing" && return 1 || [ $? -eq 1 ]
        fi
        ;;
    *) LD_LIBRARY_PATH=$lib "$1" ;;
    esac >"$work/out" 2>&1 || { cat "$work/out"; say "$1 failed"; exit 1; }
    [ -s "$work/out" ] || { say "$1 printed nothing"; exit 1; }
}

say "what libgma.so needs"
ldd "$lib/libgma.so" | while read -r name rest; do
    case $name in
    linux-vdso.so.* | libc.so.* | libm.so.* | libgomp.so.* | libomp.so.* | */ld-linux*) ;;
    *) say "libgma.so needs $name $rest"; exit 1 ;;
    esac
done
if command -v nm >/dev/null; then
    strangers=$(nm -D --defined-only "$lib/libgma.so" | awk '$3 !~ /^gma_/ {print $3}')
    [ -z "$strangers" ] || { say "libgma.so exports: $strangers"; exit 1; }
fi

say "the installed program"
if [ "$have_lm" = 1 ]; then
    "$prefix/bin/gma" --version
    "$prefix/bin/gma" info >/dev/null
fi

say "the installed headers, each on its own"
for header in "$prefix"/include/gma/*.h; do
    echo "#include <gma/$(basename "$header")>" >"$work/one.c"
    echo "typedef int not_empty;" >>"$work/one.c"
    "$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only "$work/one.c" -I"$prefix/include"
done

say "pkg-config"
for example in $examples; do
    module=gma
    [ "$example" = generate ] && module=gma_lm
    # shellcheck disable=SC2046 # lists of flags
    "$cc" -std=c11 "$source/examples/$example.c" -o "$work/$example" $(pkg-config --cflags --libs $module) -lm
    run_example "$work/$example"
    # -Bstatic for our own archives only; the system's libraries stay shared
    # shellcheck disable=SC2046
    "$cc" -std=c11 "$source/examples/$example.c" -o "$work/$example-static" $(pkg-config --cflags $module) \
        $([ $module = gma_lm ] && echo "$lib/libgma_lm.a") "$lib/libgma.a" \
        $(pkg-config --static --libs-only-l --libs-only-other $module | tr ' ' '\n' | grep -v -x -e -lgma -e -lgma_lm)
    if ldd "$work/$example-static" | grep -q libgma; then
        say "$example-static is not static"
        exit 1
    fi
    run_example "$work/$example-static"
done

say "find_package"
"$cmake" -S "$source/tests/install/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" -DEXAMPLES="$source/examples" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/consumer" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for example in $examples; do
    run_example "$work/consumer/${example}_shared"
    run_example "$work/consumer/${example}_static"
done
say "ok"
