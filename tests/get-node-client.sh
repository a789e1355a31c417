#!/bin/sh
# Gets gRPC's client for Node.js into the directory given; Node.js itself comes from the system's
# packages if it is missing.
. "$(dirname "$0")/packages.sh"
command -v npm >/dev/null || install_packages "Node.js, for its gRPC client" nodejs npm
command -v npm >/dev/null || exit 0
echo "installing @grpc/grpc-js"
mkdir -p "$1"
# Versions and hashes of it and of all it needs.
cp "$(dirname "$0")"/node/package*.json "$1"
npm ci --silent --no-audit --no-fund --prefix "$1" >"$1/npm.log" 2>&1 ||
	echo "@grpc/grpc-js could not be installed, see $1/npm.log; its test will be skipped"
exit 0
