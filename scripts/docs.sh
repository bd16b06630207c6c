#!/bin/sh
# make docs: the pages under docs/ and the Markdown at the top as a site with search, in .site. A warning is an error.
. "$(dirname "$0")/venv.sh"

install -e '.[docs]'
"$PY" -m sphinx -W --keep-going -q -b html -c scripts/site -d .site/.doctrees . .site
echo "open .site/index.html"
