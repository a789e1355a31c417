#!/bin/bash
# Exits 0 if the service of this container is ready. The shell asks by a socket of its own, since a
# Python that starts every ten seconds would take more CPU than many services.
set -u

if [ -n "${RATELIMIT_HTTP_TLS_CERT:-}" ]; then
	exec /bin/ratelimit health # the shell speaks no TLS
fi
address=${RATELIMIT_HTTP:-${HOST:-0.0.0.0}:${PORT:-8080}}
host=${address%:*}
case "$host" in
0.0.0.0) host=127.0.0.1 ;;
:: | "[::]") host=::1 ;;
esac
exec 3<>"/dev/tcp/$host/${address##*:}" || exit 1
printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
read -r -t 1 _ status _ <&3
[ "$status" = 200 ]
