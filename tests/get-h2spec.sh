#!/bin/sh
# Gets h2spec, the conformance tests of HTTP/2, into the directory given, with Go's own means.
if ! command -v go >/dev/null; then
	echo "Go is missing, so the HTTP/2 conformance tests (h2spec) will be skipped"
	exit 0
fi
echo "installing h2spec"
GOBIN="$1" go install github.com/summerwind/h2spec/cmd/h2spec@latest >"$1/h2spec.log" 2>&1 ||
	echo "h2spec could not be installed, see $1/h2spec.log; its test will be skipped"
exit 0
