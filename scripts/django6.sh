#!/bin/sh
# For test.sh: makes .venv-6, the newest Django 6.x on the newest Python from 3.12 on. Where it cannot, prints why.
. "$(dirname "$0")/venv.sh"

# The newest of PYTHON6, or of those on PATH, in pyenv and in .python, as "3.13.0 /path/to/python"
newest_python() {
    # Where several are installed side by side, others lie beside the one that runs us.
    installed=$("$PY" -c 'import sys; print(sys.base_prefix)')
    for candidate in ${PYTHON6:-python3 python3.14 python3.13 python3.12 "$installed"/../*/bin/python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python .python/*/bin/python}; do
        "$candidate" -c 'import ensurepip, sqlite3, ssl, sys
if sys.version_info >= (3, 12): print(sys.version.split()[0], sys.executable)' 2>/dev/null || true
    done | sort -V | tail -n 1
}

# uv downloads a build of Python where GitHub can be reached.
download_python() {
    "$PY" -m pip install --quiet --disable-pip-version-check uv >&2 &&
        "$PY" -m uv python install --quiet --install-dir .python 3.13 >&2
}

newest=$(newest_python)
if [ -z "$newest" ] && [ -z "${PYTHON6:-}" ] && download_python; then
    newest=$(newest_python)
fi
if [ -z "$newest" ]; then
    echo "Django 6.x needs Python 3.12 or later, and there is none on PATH, in pyenv or from uv; name one: PYTHON6=/path"
    exit 1
fi
PY=$PWD/.venv-6/bin/python
if ! { make_venv "${newest#* }" && install -e '.[docs,mysql,test]' 'Django>=6,<7'; } >&2; then
    echo "Django 6.x: .venv-6 could not be made with ${newest#* }: see above"
    exit 1
fi
