#!/bin/sh
# make screenshots [ONLY=jobs,job]: write the pictures of the admin into docs/img. Chromium is installed where we may. By hand:
# sh scripts/screenshots.sh --every --folder /tmp/pictures has every page in both languages, themes and widths, to look at.
. "$(dirname "$0")/venv.sh"
install_wheels
exec "$PY" -m tests.browser.screenshots "$@"
