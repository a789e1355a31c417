#!/bin/sh
# get-go-program.sh PROGRAM SOURCE PACKAGE: builds a Go program that tests use, with Go's own means.
# PROGRAM is the file to write. SOURCE is a directory with go.mod and go.sum: the versions and hashes
# of all that is needed. Go comes from the system's packages if it is missing and that needs no password.
. "$(dirname "$0")/packages.sh"
name=$(basename "$1")
command -v go >/dev/null || install_packages "Go, to build $name" golang-go
command -v go >/dev/null || exit 0
echo "building $name, which can take some minutes"
mkdir -p "$(dirname "$1")"
(cd "$2" && go build -mod=readonly -o "$1" "$3") >"$1.log" 2>&1 ||
	echo "$name could not be built, see $1.log; its tests will be skipped"
exit 0
