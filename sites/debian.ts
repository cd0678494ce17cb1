import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, request as ask } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { configFromEnvironment } from '../src/config.ts'
import { run } from './ground.ts'

const mirror = 'http://deb.debian.org/debian'
/** What an image of a provider has before anything is installed. */
const included =
  'openssh-server,sudo,python3,python3-apt,iproute2,ca-certificates,init-system-helpers,netbase'

/** Debian 12 and 13. */
export type DebianRelease = 'bookworm' | 'trixie'

/**
 * The files of a Debian, as a provider's image has them, made once in the cache: about a minute. A
 * host writes over them (`HostOptions.system`).
 */
export const debianSystem = async (release: DebianRelease = 'bookworm'): Promise<string> => {
  const cache = join(configFromEnvironment().cacheDir, 'debian')
  const system = join(cache, `${release}-1`)
  if (existsSync(system)) return system
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'making-'))
  try {
    const root = join(work, 'root')
    await run('debootstrap', ['--variant=minbase', `--include=${included}`, release, root, mirror], {
      deadlineMs: 900_000,
      environment: { DEBIAN_FRONTEND: 'noninteractive' },
    })
    rmSync(join(root, 'etc/ssh'), { recursive: true })
    mkdirSync(join(root, 'etc/ssh'))
    // No init of its own runs: services start by their scripts.
    writeFileSync(join(root, 'usr/sbin/policy-rc.d'), '#!/bin/sh\nexit 101\n', { mode: 0o755 })
    rmSync(join(root, 'var/cache/apt/archives'), { recursive: true })
    mkdirSync(join(root, 'var/cache/apt/archives/partial'), { recursive: true })
    // Another process may have made it meanwhile.
    if (!existsSync(system)) renameSync(root, system)
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
  return system
}

/**
 * A proxy to Debian's mirrors and nothing else, for hosts that have no other way out. `line` is
 * apt's setting for it.
 */
export const openAptProxy = async (address: string): Promise<{ line: string; close(): Promise<void> }> => {
  const server = createServer((request, response) => {
    const url = URL.canParse(request.url ?? '') ? new URL(request.url!) : undefined
    if (
      url === undefined ||
      !/^(deb|security)\.debian\.org$/.test(url.hostname) ||
      request.method !== 'GET'
    ) {
      response.writeHead(403).end()
      return
    }
    const { host: _, connection: __, 'proxy-connection': ___, ...headers } = request.headers
    const upstream = ask(url, { headers: { ...headers, host: url.host } }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.pipe(response)
    })
    upstream.on('error', () => response.destroy())
    response.on('close', () => upstream.destroy())
    upstream.end()
  })
  await new Promise<void>((resolve) => server.listen(0, address, resolve))
  return {
    line: `Acquire::http::Proxy "http://${address}:${String((server.address() as AddressInfo).port)}";\n`,
    close: () =>
      new Promise((resolve) => {
        server.closeAllConnections()
        server.close(() => resolve())
      }),
  }
}
