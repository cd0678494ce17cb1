#!/bin/sh
# Brings the tables of Temporal's two databases to the newest version with its own tool; connection
# by SQL_* variables. Harmless when all is there.
set -eu
for kind in temporal visibility; do
  database=temporal
  [ "$kind" = temporal ] || database=temporal_visibility
  temporal-sql-tool --database "$database" setup-schema --version 0.0
  temporal-sql-tool --database "$database" update-schema --schema-name "postgresql/v12/$kind"
done
