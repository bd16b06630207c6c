# Sourced by demo.sh and serve.sh: the environment of the demo, its driver and its tables.
. "$(dirname "$0")/venv.sh"

if [ -z "${DATABASE_URL:-}" ] && [ -f .env ]; then
    DATABASE_URL=$(sed -n 's/^DATABASE_URL=//p' .env | tail -n 1 | tr -d "\"'")
    [ -z "$DATABASE_URL" ] || export DATABASE_URL
fi
install -e '.[demo]'
case "${DATABASE_URL:-}" in
mysql://*)
    mysql_headers
    install -e '.[mysql]'
    ;;
postgres://* | postgresql://*) install -e '.[postgres]' ;;
esac
if [ -n "${REDIS_URL:-}" ]; then
    install -e '.[redis]'
fi
"$PY" manage.py migrate -v 0
