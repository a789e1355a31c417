#!/bin/sh
# generate.sh: writes v1/ratelimit.pb.go from v1/ratelimit.proto, with the protoc of grpcio-tools.
cd "$(dirname "$0")" || exit 1
proto=../../proto
plugin=$(mktemp -d)
go build -o "$plugin" google.golang.org/protobuf/cmd/protoc-gen-go || exit 1
set -- --go_out=. --go_opt=paths=source_relative
for file in $(cd $proto && find envoy -name '*.proto'); do
	set -- "$@" "--go_opt=M$file=github.com/envoyproxy/go-control-plane/$(dirname "$file")"
done
PATH="$plugin:$PATH" ../../.venv/bin/python -m grpc_tools.protoc -I. -I$proto "$@" v1/ratelimit.proto
rm -r "$plugin"
