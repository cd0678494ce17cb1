#!/bin/sh
# Makes the namespace that namespace.yaml beside it describes, at TEMPORAL_ADDRESS. Harmless when
# all is there.
set -eu
here=$(dirname "$0")
namespace=${1:-default}
retention=$(sed -n 's/^retention: //p' "$here/namespace.yaml")
if temporal operator namespace describe --namespace "$namespace" >/dev/null 2>&1; then
  temporal operator namespace update --namespace "$namespace" --retention "$retention"
else
  temporal operator namespace create --namespace "$namespace" --retention "$retention"
fi
sed -n '/^searchAttributes:/,$ s/^  \([A-Za-z]*\): \([A-Za-z]*\)$/\1 \2/p' "$here/namespace.yaml" |
  while read -r name type; do
  # A namespace that was made just now is known everywhere only after a moment.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    temporal operator search-attribute list --namespace "$namespace" | grep -qw "$name" && break
    temporal operator search-attribute create --namespace "$namespace" --name "$name" --type "$type" || sleep 2
  done
  temporal operator search-attribute list --namespace "$namespace" | grep -w "$name" | grep -qi "$type"
done
