#!/bin/sh
# Builds what renders and checks deploy/ as Helm, Kustomize and Kubernetes would, into the directory
# given, with Go's own means. Go comes from the system's packages if it is missing and that needs no
# password.
. "$(dirname "$0")/packages.sh"
command -v go >/dev/null || install_packages "Go, for the tests of deploy/" golang-go
command -v go >/dev/null || exit 0
echo "building what checks deploy/, which takes some minutes"
mkdir -p "$1"
# Versions and hashes of all it needs: tests/deploy/validate/go.mod and go.sum.
(cd "$(dirname "$0")/deploy/validate" &&
	go build -mod=readonly -o "$1/validate" .) >"$1/validate.log" 2>&1 ||
	echo "it could not be built, see $1/validate.log; its tests will be skipped"
exit 0
