#!/bin/sh
# Makes the namespace and the search attributes that runs set. Safe to run on every start, against any Temporal:
#   TEMPORAL_ADDRESS=127.0.0.1:7233 TEMPORAL_NAMESPACE=default sh deploy/temporal/namespace.sh
# A namespace that exists keeps the retention it has.
set -eu

: "${TEMPORAL_NAMESPACE:=default}" "${RETENTION:=30d}"

if ! temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
fi

# The server's own roles learn of a new namespace some seconds after it was made.
attempt=0
until temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" \
  --name AgentName --type Keyword --name RunPhase --type Keyword --name CostUsd --type Double; do
  attempt=$((attempt + 1))
  if [ "$attempt" -ge 30 ]; then exit 1; fi
  sleep 2
done
