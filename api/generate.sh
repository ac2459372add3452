#!/bin/sh
# Generates the server's interface and the Go client from openapi.yaml, and the sums by which a test sees that
# they are current. OAPI_CODEGEN names the generator (v2.8.2); by default the one on PATH.
set -eu
cd "$(dirname "$0")"
tool=${OAPI_CODEGEN:-oapi-codegen}
"$tool" -config server.yaml openapi.yaml
"$tool" -config client.yaml openapi.yaml
sha256sum openapi.yaml server.yaml client.yaml server.gen.go client/client.gen.go > generate.sum
