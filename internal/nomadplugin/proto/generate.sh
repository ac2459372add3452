#!/bin/sh
# Regenerates the Go code of the plugin protocol from the .proto files beside this script.
#
#   generate.sh          regenerate when the inputs or outputs differ from generated.sum
#   generate.sh -force   regenerate always
#   generate.sh -check   only compare with generated.sum; needs no protoc
#
# Needs protoc 3.21 or newer with its well-known types (Debian: protobuf-compiler, libprotobuf-dev) and, on PATH or in
# $PROTOC_PLUGINS, protoc-gen-go and protoc-gen-go-grpc.
set -eu

cd "$(dirname "$0")/../.."
out="$(cd .. && pwd)"
sum=nomadplugin/proto/generated.sum

sums() {
	sha256sum nomadplugin/proto/*.proto nomadplugin/proto/generate.sh nomadplugin/*/*.pb.go | LC_ALL=C sort -k 2
}

case "${1:-}" in
-check)
	sums | diff -u "$sum" - || {
		echo "generated plugin protocol code is not current: run internal/nomadplugin/proto/generate.sh" >&2
		exit 1
	}
	exit 0
	;;
-force) ;;
*)
	if [ -f "$sum" ] && sums | cmp -s "$sum" -; then
		exit 0
	fi
	;;
esac

if [ -n "${PROTOC_PLUGINS:-}" ]; then
	PATH="$PROTOC_PLUGINS:$PATH"
fi
rm -f nomadplugin/*/*.pb.go
protoc -I . \
	--go_out="$out" --go_opt=module=github.com/heteroflow/heteroflow \
	--go-grpc_out="$out" --go-grpc_opt=module=github.com/heteroflow/heteroflow \
	nomadplugin/proto/*.proto
sums >"$sum"
