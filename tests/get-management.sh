#!/bin/sh
# Builds the management server of tests/management, on Envoy Gateway's library, into the directory
# given, with Go's own means. Go comes from the system's packages if that needs no password.
. "$(dirname "$0")/packages.sh"
command -v go >/dev/null || install_packages "Go, for a management server of rules" golang-go
command -v go >/dev/null || exit 0
echo "building a management server of rules"
mkdir -p "$1"
# Versions and hashes of all it needs: tests/management/go.mod and go.sum.
(cd "$(dirname "$0")/management" &&
	go build -mod=readonly -o "$1/management" .) >"$1/management.log" 2>&1 ||
	echo "it could not be built, see $1/management.log; its tests will be skipped"
exit 0
