#!/bin/sh
# Makes Temporal's two databases and brings their schemas up to this version. Safe to run on every start.
set -eu

for database in temporal:temporal temporal_visibility:visibility; do
  name=${database%%:*}
  schema=${database##*:}
  temporal-sql-tool --db "$name" create
  temporal-sql-tool --db "$name" setup-schema -v 0.0
  temporal-sql-tool --db "$name" update-schema -d "/etc/temporal/schema/postgresql/v12/$schema/versioned"
done
