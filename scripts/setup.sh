# Sourced by demo.sh and serve.sh: the environment of the demo and its driver. The commands make the tables.
. "$(dirname "$0")/venv.sh"

if [ -f .env ]; then
    for name in DATABASE_URL REDIS_URL BROKER_URL; do
        eval "given=\${$name:-}"
        value=$(sed -n "s/^$name=//p" .env | tail -n 1 | tr -d "\"'")
        if [ -z "$given" ] && [ -n "$value" ]; then
            export "$name=$value"
        fi
    done
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
if [ -n "${BROKER_URL:-}" ]; then
    install -e '.[kombu]'
fi
