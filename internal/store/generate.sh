#!/bin/sh
# Generates sqlgen/ from migrations/ and queries/, and notes what it was generated from in sqlgen/inputs.sum, which
# a test compares: building sqlc takes minutes, comparing takes none. Set SQLC to use a built one.
set -eu
cd "$(dirname "$0")"
if [ -n "${SQLC:-}" ]; then
    "$SQLC" generate
else
    go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate
fi
sha256sum sqlc.yaml migrations/*.sql queries/*.sql sqlgen/*_gen.go > sqlgen/inputs.sum
