#!/bin/sh
# make proofs / make release-check: which pages of evidence are older than what they prove. Options go to the command.
command=proofs
[ "${1:-}" != --release ] || command=release-check
sh "$(dirname "$0")/needs_git.sh" "$command" "counts the commits since each page of evidence was made" || exit 1
. "$(dirname "$0")/venv.sh"

"$PY" -m tests.proofs.freshness "$@"
