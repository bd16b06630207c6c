#!/bin/sh
# make proofs / make release-check: which pages of evidence are older than what they prove. Options go to the command.
. "$(dirname "$0")/venv.sh"

"$PY" -m tests.proofs.freshness "$@"
