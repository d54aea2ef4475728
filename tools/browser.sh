#!/bin/sh
# make test-browser: the report of gma inspect in a headless Chromium. Needs build/bin/gma.
# Where this system's packages hold no Chromium, says so and ends well; where they do, not having it is a failure.
set -eu
cd "$(dirname "$0")/.."
code=0
tools/deps.sh browser || code=$?
if [ "$code" -eq 3 ]; then
    echo "test-browser: NOT RUN, there is no Chromium to be had here (see above)"
    exit 0
fi
[ "$code" -eq 0 ] || exit "$code"
python=.venv-browser/bin/python
test -x "$python" || python3 -m venv .venv-browser
"$python" -m pip install --quiet -r tests/browser/requirements.txt
exec "$python" -m pytest -q -p no:cacheprovider --rootdir tests/browser tests/browser
