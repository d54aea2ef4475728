#!/bin/sh
# Makes sure that what the build needs is installed. Needs sh, dpkg-query and apt-get only.
#   tools/deps.sh          build, tests, demo        tools/deps.sh arm64    the emulated AArch64 tests
#   tools/deps.sh bench    make bench                tools/deps.sh python   make test-python, make wheel
#   tools/deps.sh browser  make test-browser; exit code 3: this system's packages hold no Chromium
# Nothing missing: silent. Otherwise: lists the packages and asks on a terminal; without one goes ahead only as root;
# where there is no apt, names them and stops.
set -u

packages="gcc libc6-dev make cmake pkg-config libdnnl-dev libjansson-dev libpcre2-dev libutf8proc-dev
    libcmocka-dev"
case "${1:-}" in
'') ;;
bench) packages="$packages python3 python3-venv" ;;
python) packages="$packages python3 python3-venv g++" ;; # torch.compile calls a C++ compiler
browser) packages="python3 python3-venv chromium chromium-driver" ;;
arm64) packages="gcc make cmake pkg-config gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    libcmocka-dev:arm64" ;;
*)
    echo "deps.sh: unknown set of packages \"$1\"" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    # Not Debian or its kin: we cannot look packages up, but we can look for what they bring.
    absent=""
    programs="cc cmake pkg-config" modules="jansson cmocka"
    [ "${1:-}" = browser ] && programs="python3 chromium chromedriver" modules=""
    for program in $programs; do
        command -v "$program" >/dev/null 2>&1 || absent="$absent $program"
    done
    for module in $modules; do
        pkg-config --exists "$module" 2>/dev/null || absent="$absent $module"
    done
    [ -z "$absent" ] && [ "${1:-}" != arm64 ] && exit 0
    echo "This system has no apt-get. Please install what these Debian packages hold, then try again:" >&2
    echo "  $(echo $packages)" >&2
    [ "${1:-}" = browser ] && exit 3
    exit 1
fi

missing=""
for package in $packages; do
    # One line an architecture: a package may be there for several.
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

echo "Missing packages:$missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if [ ! -t 0 ]; then
        echo "Install them with: apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
    if ! command -v sudo >/dev/null 2>&1; then
        echo "Install them as root with: apt-get install$missing" >&2
        exit 1
    fi
fi
if [ -t 0 ]; then
    printf 'Install them with apt-get now? [y/N] '
    read -r answer || answer=""
    case "$answer" in
    y | Y | yes) ;;
    *)
        echo "Nothing was installed." >&2
        exit 1
        ;;
    esac
fi

if [ "${1:-}" = arm64 ]; then
    $as_root dpkg --add-architecture arm64 || exit 1
fi
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
# Without a list of packages from the network the one that is there may do; what it lacks is not to be had.
if ! $as_root apt-get update && [ "${1:-}" != browser ]; then
    exit 1
fi
if [ "${1:-}" = browser ]; then
    for package in $missing; do
        apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [0-9]' && continue
        echo "The packages that apt-get knows here hold no $package." >&2
        exit 3
    done
fi
# shellcheck disable=SC2086 # a list of words
$as_root apt-get install -y --no-install-recommends $missing || exit 1
