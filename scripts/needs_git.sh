# needs_git.sh COMMAND WHY: end in a sentence if this folder is no clone of the repository, such as an unpacked sdist.
cd "$(dirname "$0")/.." || exit 1
if [ ! -e .git ] || ! command -v git >/dev/null 2>&1; then
    echo "make $1 $2, so it needs git and a clone of the repository. Nothing was done: there is no git, or this is no clone." >&2
    exit 1
fi
