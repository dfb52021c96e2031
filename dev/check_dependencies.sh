#!/bin/sh
# Rules about the dependency tree that no other tool checks: one version of arrow, and workflows that can't reach S3 or
# ClickHouse, since workflow code has to be deterministic.
set -eu

fail() {
    echo "dependency rules: $1" >&2
    exit 1
}

for crate in arrow-array arrow-schema arrow-buffer parquet; do
    versions=$(grep -A1 "^name = \"$crate\"\$" Cargo.lock | grep -c '^version = ' || true)
    [ "$versions" -eq 1 ] || fail "Cargo.lock has $versions versions of $crate; there must be one"
done

tree=$(cargo tree --locked -p batch-export-workflows -e normal --prefix none)
for crate in aws-sdk-s3 parquet sqlx batch-export-engine; do
    if echo "$tree" | grep -q "^$crate v"; then
        fail "batch-export-workflows depends on $crate; workflow code must not"
    fi
done

echo "dependency rules: ok"
