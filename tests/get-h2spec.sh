#!/bin/sh
# Gets h2spec, the conformance tests of HTTP/2, into the directory given, with Go's own means.
# Go comes from the system's packages if it is missing and that needs no password.
. "$(dirname "$0")/packages.sh"
command -v go >/dev/null || install_packages "Go, for the HTTP/2 conformance tests" golang-go
command -v go >/dev/null || exit 0
echo "installing h2spec"
mkdir -p "$1"
# Versions and hashes of it and of all it needs: tests/h2spec/go.mod and go.sum.
(cd "$(dirname "$0")/h2spec" &&
	go build -mod=readonly -o "$1/h2spec" github.com/summerwind/h2spec/cmd/h2spec) >"$1/h2spec.log" 2>&1 ||
	echo "h2spec could not be installed, see $1/h2spec.log; its test will be skipped"
exit 0
