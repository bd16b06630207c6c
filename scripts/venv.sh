# Sourced by the other scripts: finds Python 3.11+ and makes .venv. Sets $PY to the environment's interpreter.
set -eu
cd "$(dirname "$0")/.."

for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        found=$candidate
        break
    fi
done
if [ -z "${found:-}" ]; then
    echo "No Python 3.11 or later on PATH. Install one, or name it: PYTHON=/path/to/python3.11 make ..." >&2
    exit 1
fi

# make_venv PYTHON: the environment of $PY, unless it is there already
make_venv() {
    if ! "$PY" -c 'import pip' >/dev/null 2>&1; then
        rm -rf "${PY%/bin/python}"
        "$1" -m venv "${PY%/bin/python}" || {
            echo "python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2
            return 1
        }
    fi
}

# install EXTRAS...: pip install this checkout into $PY's environment, only when the content of pyproject.toml has changed
# since the last time. The extra dev contains all others.
install() {
    wanted=$(cksum <pyproject.toml)
    all=${PY%/bin/python}/.installed-dev
    stamp=${PY%/bin/python}/.installed-$(echo "$*" | tr -c 'a-z0-9\n' '-')
    for found in "$all" "$stamp"; do
        if [ "$(cat "$found" 2>/dev/null)" = "$wanted" ]; then
            return 0
        fi
    done
    # What is imported is compiled then: a third of what is installed never is.
    "$PY" -m pip install --quiet --disable-pip-version-check --no-compile "$@" || return 1
    echo "$wanted" >"$stamp"
    case $* in *'[dev]'*) echo "$wanted" >"$all" ;; esac
}

PY=$PWD/.venv/bin/python
make_venv "$found"

# Django 5.2 whatever the Python: the newest Django has an environment of its own.
lts='Django>=5.2,<6'

# Everything that has a wheel: all but the driver of MySQL and MariaDB, which needs a C compiler.
install_wheels() {
    install -e '.[compat,docs,lint,test]' "$lts"
}

# Headers and a compiler for mysqlclient, which has no Linux wheel: installed where we may.
mysql_headers() {
    if pkg-config --exists libmariadb 2>/dev/null || pkg-config --exists mysqlclient 2>/dev/null; then
        command -v cc >/dev/null 2>&1 && return 0
    fi
    need="gcc pkg-config default-libmysqlclient-dev python3-dev"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        log=$(mktemp)
        echo "installing $need"
        if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $need; } >"$log" 2>&1; then
            tail -n 5 "$log" >&2
            return 1
        fi
        rm -f "$log"
        return 0
    fi
    echo "mysqlclient needs a C compiler and the MySQL headers. Install them and run this again:" >&2
    echo "  Debian, Ubuntu:  sudo apt-get install -y $need" >&2
    echo "  Fedora:          sudo dnf install -y gcc mariadb-connector-c-devel python3-devel" >&2
    echo "  Alpine:          sudo apk add gcc musl-dev mariadb-connector-c-dev python3-dev" >&2
    echo "  macOS:           brew install mysql-client pkg-config" >&2
    return 1
}
