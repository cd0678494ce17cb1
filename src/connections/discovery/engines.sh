# shellcheck shell=sh
# The programs of container engines in the search path, one a line.
engines() {
  for engine in docker podman apptainer singularity; do command -v "$engine" >/dev/null 2>&1 && echo "$engine"; done
  true
}

# `docker` where its program is in the search path and no engine answers it within 10 s.
silent_engines() {
  if command -v docker >/dev/null 2>&1; then
    if command -v timeout >/dev/null 2>&1; then timeout 10 docker version; else docker version; fi \
      >/dev/null 2>&1 </dev/null || echo docker
  fi
}

# As `engines`, without a Docker whose engine does not answer.
answering_engines() {
  silent=$(silent_engines)
  for engine in $(engines); do [ "$engine" = "$silent" ] || echo "$engine"; done
  true
}
