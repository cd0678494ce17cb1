# The service and its worker. BASE is any Debian 13 or later with apt; what is built on it is in docs/operations.md.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS npm
# The distribution's Node only runs npm; the project's own is one of its dependencies.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates nodejs npm && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY package.json package-lock.json ./

FROM npm AS dependencies
# Temporal's SDK brings its library for five platforms, 27 MB each.
RUN --mount=type=cache,target=/root/.npm npm ci --omit=dev --no-audit --no-fund \
  && find node_modules/@temporalio/core-bridge/releases -mindepth 1 -maxdepth 1 ! -name x86_64-unknown-linux-gnu -exec rm -r {} +

FROM npm AS build
RUN --mount=type=cache,target=/root/.npm npm ci --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY bin/build.mjs bin/
COPY temporal-config temporal-config
COPY examples/requests.yaml examples/
COPY src src
COPY workflows workflows
COPY activities activities
RUN node_modules/.bin/node bin/build.mjs

FROM ${BASE} AS runner
RUN apt-get update && apt-get install -y --no-install-recommends golang-go && rm -rf /var/lib/apt/lists/*
COPY src/drivers/runtime/local/runner.go /
RUN CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /runner /runner.go
COPY src/domains/console/holder/holder.go /
RUN for machine in amd64 arm64; do CGO_ENABLED=0 GOARCH=$machine go build -trimpath -ldflags '-s -w' -o /holders/holder-$machine /holder.go; done

FROM ${BASE}
# tini reaps what tasks leave behind, time measures them; playbooks run in bubblewrap, SIF files are packed by squashfs-tools.
RUN apt-get update && apt-get install -y --no-install-recommends ansible-core bubblewrap ca-certificates openssh-client squashfs-tools tini time && rm -rf /var/lib/apt/lists/* \
  && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/orrery --shell /usr/sbin/nologin orrery \
  && install -d -o orrery -g orrery /var/lib/orrery /var/cache/orrery
WORKDIR /app
COPY --from=dependencies /app/package.json ./
COPY --from=dependencies /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY --from=runner /runner dist/src/drivers/runtime/local/
COPY --from=runner /holders dist/src/domains/console/holder/
ENV PATH=/app/node_modules/.bin:/usr/local/bin:/usr/bin:/bin \
  SERVICE_DATA_DIR=/var/lib/orrery \
  SERVICE_CACHE_DIR=/var/cache/orrery \
  SERVICE_LISTEN_ADDRESS=0.0.0.0:8080 \
  SERVICE_ADMIN_ADDRESS=0.0.0.0:9090
USER orrery
VOLUME /var/lib/orrery
EXPOSE 8080 9090
# Alive, not ready: what restarts on this must not restart because a database is away. docker-compose.yml, which only waits for it, asks for more.
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
  CMD ["node", "-e", "fetch('http://127.0.0.1:' + process.env.SERVICE_ADMIN_ADDRESS.split(':').pop() + '/livez').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["tini", "--", "node"]
CMD ["dist/src/main.js"]
