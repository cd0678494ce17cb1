#!/bin/sh
# Uploads a file, copies it to a bucket and on to a host, archives, indexes, searches and downloads, with
# curl. api: the API's URL; folder: below SERVICE_LOCAL_STORAGE_ROOT; endpoint and reference: of the
# bucket; host (HOST:PORT), user, fingerprint, key and place: of the host, its host key, the login's key in
# the vault and a folder there.
set -eu
api=${api:?} folder=${folder:?} endpoint=${endpoint:?} reference=${reference:?}
host=${host:?} user=${user:?} fingerprint=${fingerprint:?} key=${key:?} place=${place:?}
here=$(cd "$(dirname "$0")" && pwd)
run=$(date +%s)
call() { curl -sS --fail-with-body "$@"; echo; }
# Waits until a record has one of its final states.
ended() { # url, pattern
  until call "$1" | grep -Eq "\"status\":\"($2)\""; do sleep 1; done
}

# A second run uses the environment of the first.
curl -sf -o /dev/null "$api/environments/storages/" ||
  cat "$here/environment.yaml" "$here/host.yaml" |
  sed -e "s|LOCAL_FOLDER|$folder|; s|S3_ENDPOINT|$endpoint|; s|CREDENTIAL_REFERENCE|$reference|" \
    -e "s|SSH_HOST|$host|; s|SSH_USER|$user|; s|SSH_FINGERPRINT|$fingerprint|; s|SSH_REFERENCE|$key|" \
    -e "s|SSH_FOLDER|$place|" |
  call -X POST -H 'Content-Type: application/yaml' --data-binary @- "$api/environments/" >/dev/null

head -c 20000000 /dev/urandom |
  call -X PUT -H 'Content-Type: application/octet-stream' --data-binary @- \
    "$api/storages/data/entries/?path=results-$run/large"
call -X PUT -H 'Content-Type: text/csv' --data-binary 'a,b' "$api/storages/data/entries/?path=results-$run/table.csv"

call --json "{\"path\": \"results-$run\", \"destinationStorageId\": \"bucket\", \"id\": \"up-$run\"}" \
  "$api/storages/data/copies/"
ended "$api/storage-downloads/up-$run/" 'completed|failed|cancelled'
call "$api/storage-downloads/up-$run/"

call --json "{\"path\": \"results-$run\", \"destinationStorageId\": \"host\", \"id\": \"on-$run\"}" \
  "$api/storages/bucket/copies/"
ended "$api/storage-downloads/on-$run/" 'completed|failed|cancelled'
digest=$(sha256sum "$folder/results-$run/large" | cut -c1-64)
call --json "{\"path\": \"results-$run/large\"}" "$api/storages/host/checksum/" | grep "sha256:$digest"

call --json "{\"path\": \"results-$run\", \"id\": \"packed-$run\"}" "$api/storages/bucket/archives/"
ended "$api/storage-downloads/packed-$run/" 'ready|failed|cancelled'
curl -sS -o "$folder/results-$run.tar.gz" "$api/storage-downloads/packed-$run/content/"
tar -xzOf "$folder/results-$run.tar.gz" "results-$run/large" | cmp - "$folder/results-$run/large"

call --json '{"checksums": true}' "$api/storages/bucket/index-runs/"
until ! call "$api/storages/bucket/index-runs/" | grep -q '"status":"running"'; do sleep 1; done
call "$api/storages/bucket/index/?checksum=sha256:$digest"
call --json "{\"path\": \"results-$run/table.csv\", \"id\": \"table-$run\"}" "$api/storages/bucket/promote-data/"
