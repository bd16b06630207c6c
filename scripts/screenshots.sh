#!/bin/sh
# make screenshots [ONLY=jobs,job]: write the pictures of the admin into docs/img, without ONLY that of the tutorial as well.
# Chromium is installed where we may. By hand:
# sh scripts/screenshots.sh --every --folder /tmp/pictures has every page in both languages, themes and widths, to look at.
. "$(dirname "$0")/venv.sh"
install_wheels
"$PY" -m tests.browser.screenshots "$@"
[ "$#" -gt 0 ] || "$PY" -m tests.docs.tutorial_picture
