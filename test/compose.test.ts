import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from '@jest/globals'
import { parse } from 'yaml'
import { z } from 'zod'
import { documentConfig, parseConfig } from '../src/config.ts'
import { findTemporalProgram } from '../src/embedded/temporal-program.ts'
import { readTemporalSettings } from '../src/embedded/temporal-settings.ts'
import { openTemporal } from '../src/embedded/temporal.ts'
import { openLog } from '../src/observability/log.ts'
import { cacheDir, childEnvironment, temporaryFolder } from './embedded/folder.ts'
import { runFolder } from './support/run-folder.ts'
import { proved } from './support/share.ts'

const root = new URL('../', import.meta.url).pathname
const text = (name: string): string => readFileSync(join(root, name), 'utf8')

/** A file that must be there: by its short form Docker makes a folder where the file is missing. */
const bindMount = z.strictObject({
  type: z.literal('bind'),
  source: z.string(),
  target: z.string(),
  read_only: z.literal(true),
  bind: z.strictObject({ create_host_path: z.literal(false) }),
})
const strings = z.union([z.string(), z.array(z.string()).min(1)])
/** The part of the Compose specification that the file uses; a key outside of it is a slip. */
const composeFile = z
  .strictObject({
    services: z.record(
      z.string(),
      z.strictObject({
        image: z.string(),
        hostname: z.string().optional(),
        build: z.strictObject({ context: z.string(), args: z.record(z.string(), z.string()) }).optional(),
        restart: z.string().regex(/^(?:unless-stopped|on-failure:\d+)$/),
        stop_grace_period: z.string().optional(),
        security_opt: z.array(z.string()).optional(),
        cap_drop: z.array(z.string()).optional(),
        environment: z.record(z.string(), z.string()),
        entrypoint: strings.optional(),
        command: strings.optional(),
        ports: z.array(z.string()).optional(),
        volumes: z.array(z.union([z.string(), bindMount])).optional(),
        logging: z.strictObject({
          driver: z.literal('json-file'),
          options: z.strictObject({ 'max-size': z.literal('10m'), 'max-file': z.literal('5') }),
        }),
        depends_on: z
          .record(
            z.string(),
            z.strictObject({ condition: z.enum(['service_healthy', 'service_completed_successfully']) }),
          )
          .optional(),
        healthcheck: z
          .strictObject({
            test: z.array(z.string()),
            interval: z.string(),
            timeout: z.string(),
            start_period: z.string().optional(),
            retries: z.int(),
          })
          .optional(),
      }),
    ),
    volumes: z.record(z.string(), z.null()),
  })
  .catchall(z.unknown())

/**
 * Values as compose fills them in: `${NAME:-default}`, `${NAME:+where it is set}`, and
 * `${NAME:?why}` from `given`; the inner ones first.
 */
const filled = (source: string, given: Record<string, string>): string => {
  const once = source.replace(
    /\$\{(\w+)(?::([-?+])([^${}]*))?\}/g,
    (_, name: string, operator?: string, rest?: string) => {
      if (operator === '+') return (given[name] ?? '') === '' ? '' : (rest ?? '')
      const value = given[name] ?? (operator === '-' ? rest : undefined)
      if (value === undefined) throw new Error(`${name} has no value and no default`)
      return value
    },
  )
  return once === source ? once : filled(once, given)
}
const given = {
  POSTGRES_PASSWORD: 'a-long-password',
  ORRERY_DATABASE_PASSWORD: 'an/other@long:password%',
  TEMPORAL_DATABASE_PASSWORD: 'a-third-password',
  SERVICE_API_TOKEN: 'a-long-token',
}
/** Those without which compose starts, and something is left out. */
const optional = { TEMPORAL_CODEC_KEY: 'a-codec-key-of-more-than-32-letters' }
const file = composeFile.parse(
  parse(filled(text('docker-compose.yml'), { ...given, ...optional }), { merge: true }),
)
const services = Object.entries(file.services)

describe('docker-compose.yml', () => {
  test('names PostgreSQL, Temporal with its page, the API and two workers', () => {
    expect(services.map(([name]) => name).sort()).toEqual([
      'api',
      'postgres',
      'postgres-roles',
      'temporal',
      'temporal-namespace',
      'temporal-schema',
      'temporal-ui',
      'worker-1',
      'worker-2',
    ])
  })

  test('depends only on what is there and can be waited for', () => {
    const imageWithCheck = /^HEALTHCHECK/m.test(text('Dockerfile'))
    for (const [name, service] of services)
      for (const [other, { condition }] of Object.entries(service.depends_on ?? {})) {
        const target = file.services[other]
        expect([name, other, target !== undefined]).toEqual([name, other, true])
        if (condition === 'service_healthy')
          expect([
            other,
            target?.healthcheck !== undefined || (target?.build !== undefined && imageWithCheck),
          ]).toEqual([other, true])
        else expect([other, target?.restart]).toEqual([other, 'on-failure:5'])
      }
  })

  test('publishes on loopback only, declares its volumes, and mounts what exists', () => {
    for (const [, service] of services) {
      for (const port of service.ports ?? []) expect(port).toMatch(/^127\.0\.0\.1:\d+:\d+$/)
      for (const volume of service.volumes ?? []) {
        if (typeof volume !== 'string') continue
        const [from = ''] = volume.split(':')
        if (from.startsWith('.')) expect([from, existsSync(join(root, from))]).toEqual([from, true])
        else expect(Object.keys(file.volumes)).toContain(from)
      }
    }
    const own = services.flatMap(([, service]) =>
      (service.volumes ?? []).filter((volume) => /:\/var\/lib\/orrery$/.test(String(volume))),
    )
    expect(new Set(own).size).toBe(3)
  })

  test('gives our programs a configuration that they accept, and no secret without being asked', () => {
    const known = [...documentConfig().matchAll(/`(SERVICE_\w+)`/g)].map(([, name]) => name)
    const image = Object.fromEntries(
      [...text('Dockerfile').matchAll(/^\s+(?:ENV )?(SERVICE_\w+)=(\S+)/gm)].map(
        ([, name = '', value = '']) => [name, value],
      ),
    )
    for (const [name, service] of services.filter(([, { build }]) => build !== undefined)) {
      expect(Object.keys(service.environment).filter((variable) => !known.includes(variable))).toEqual([])
      const config = parseConfig(
        { ...image, ...service.environment },
        {
          uid: 10001,
          home: '/',
          hostname: service.hostname ?? 'of-the-container',
          xdgDataHome: undefined,
          xdgCacheHome: undefined,
          workingDirectory: '/app',
          isDirectory: () => true,
          isExecutable: () => true,
          readFile: () => '',
        },
      )
      // A discovery names the resource of a host by its hostname.
      expect([name, service.hostname]).toEqual([name, config.hostId])
      expect(config).toMatchObject({
        hostId: name,
        dataDir: '/var/lib/orrery',
        temporalAddress: { host: 'temporal', port: 7233 },
        adminAddress: { port: 9090 },
        relayAddress: { host: name, port: 7300 },
      })
      // All open the same credentials, and lend each other logins.
      expect(service.volumes).toContainEqual(
        expect.objectContaining({ source: './vault.key', target: config.vaultKeyFile }),
      )
      const { username, password } = new URL(config.databaseUrl ?? '')
      expect([username, decodeURIComponent(password)]).toEqual([
        'orrery_service',
        given.ORRERY_DATABASE_PASSWORD,
      ])
      expect(config.temporalCodecKey).toBe(name === 'api' ? optional.TEMPORAL_CODEC_KEY : undefined)
      expect(config.apiToken).toBe(name === 'api' ? given.SERVICE_API_TOKEN : undefined)
    }
    for (const missing of Object.keys(given) as (keyof typeof given)[])
      expect(() => filled(text('docker-compose.yml'), { ...given, [missing]: undefined as never })).toThrow(
        missing,
      )
  })

  test('publishes the admin address of each process on loopback, where the example of Prometheus asks for it', () => {
    const published = services
      .filter(([, { build }]) => build !== undefined)
      .map(([, { ports }]) => ports?.find((one) => one.endsWith(':9090'))?.replace(/:9090$/, ''))
    const { scrape_configs: jobs } = parse(text('deploy/prometheus/prometheus.yml')) as {
      scrape_configs: { static_configs: { targets: string[] }[] }[]
    }
    expect(jobs.flatMap((job) => job.static_configs.flatMap(({ targets }) => targets))).toEqual(published)
  })

  test("has Temporal's page ask the API's admin port for payloads, under the key that the API has, from the page's origins", () => {
    const [port] = file.services['api']?.ports?.filter((one) => one.endsWith(':9090')) ?? []
    const { TEMPORAL_CODEC_ENDPOINT: endpoint, TEMPORAL_DISABLE_NEWS_FETCH: quiet } =
      file.services['temporal-ui']?.environment ?? {}
    expect(endpoint).toBe(
      `http://127.0.0.1:${port?.split(':')[1] ?? ''}/temporal-codec/${optional.TEMPORAL_CODEC_KEY}`,
    )
    expect(quiet).toBe('true')
    const page = file.services['temporal-ui']?.ports?.[0]?.split(':')[1] ?? ''
    expect(file.services['api']?.environment['SERVICE_TEMPORAL_PAGE_ORIGINS']).toBe(
      `http://localhost:${page},http://127.0.0.1:${page}`,
    )
    const without = composeFile.parse(parse(filled(text('docker-compose.yml'), given), { merge: true }))
    expect(without.services['temporal-ui']?.environment['TEMPORAL_CODEC_ENDPOINT'] ?? '').toBe('')
  })

  test('lets our programs make namespaces for playbooks, and refuses what their sandbox does not need', () => {
    const Profile = z.object({
      defaultAction: z.literal('SCMP_ACT_ALLOW'),
      syscalls: z.array(
        z.object({
          names: z.array(z.string()),
          action: z.literal('SCMP_ACT_ERRNO'),
          args: z.unknown().optional(),
        }),
      ),
    })
    for (const [name, service] of services.filter(([, { build }]) => build !== undefined)) {
      const options = new Map(service.security_opt?.map((option) => option.split(/[:=]/) as [string, string]))
      expect([
        name,
        options.get('no-new-privileges'),
        options.get('apparmor'),
        options.get('systempaths'),
      ]).toEqual([...[name, 'true', 'unconfined', 'unconfined']])
      const { syscalls } = Profile.parse(JSON.parse(text(options.get('seccomp') ?? '')))
      const refused = new Set(syscalls.flatMap(({ names, args }) => (args === undefined ? names : [])))
      expect(
        ['bpf', 'keyctl', 'finit_module', 'io_uring_setup'].filter((call) => !refused.has(call)),
      ).toEqual([])
      const needed = ['clone', 'clone3', 'unshare', 'mount', 'umount2', 'pivot_root', 'sethostname', 'socket']
      expect(needed.filter((call) => refused.has(call))).toEqual([])
    }
  })

  test('pulls images by their release, and builds ours under its own', () => {
    for (const [name, { image }] of services)
      expect([name, image]).toEqual([name, expect.stringMatching(/^[a-z/-]+:\d+\.\d+(?:\.\d+)?$/)])
    const { version } = z.object({ version: z.string() }).parse(JSON.parse(text('package.json')))
    expect(file.services['api']?.image).toBe(`orrery:${version}`)
  })

  test('takes its settings from .env, which git ignores and .env.example describes', () => {
    const used = [...text('docker-compose.yml').matchAll(/\$\{(\w+)/g)].map(([, name]) => name)
    const described = [...text('.env.example').matchAll(/^(\w+)=(.*)$/gm)]
    for (const [, name] of described) expect(used).toContain(name)
    expect(described.filter(([, , value]) => value === '').map(([, name]) => name)).toEqual([
      ...Object.keys(given),
      ...Object.keys(optional),
    ])
    for (const [, name = '', value = ''] of described.filter(([, , given]) => given !== ''))
      expect(text('docker-compose.yml')).toContain(`\${${name}:-${value}}`)
    expect(text('.gitignore').split('\n')).toEqual(expect.arrayContaining(['/.env', '/vault.key']))
  })

  test('is accepted by the compose client of this machine, where there is one', () => {
    const clients: [string, ...string[]][] = [['docker', 'compose'], ['docker-compose']]
    const present = clients.filter(
      ([program, ...args]) => spawnSync(program, [...args, 'version'], { stdio: 'ignore' }).status === 0,
    )
    for (const [program, ...args] of present) {
      const outcome = spawnSync(
        program,
        [...args, '-f', join(root, 'docker-compose.yml'), 'config', '--quiet'],
        {
          env: { PATH: process.env['PATH'], ...given },
          encoding: 'utf8',
        },
      )
      expect([outcome.status, outcome.stderr]).toEqual([0, ''])
    }
  })
})

describe('the Dockerfile', () => {
  const lines = text('Dockerfile').replaceAll('\\\n', ' ').split('\n')

  test('copies only what exists and what .dockerignore lets through', () => {
    const allowed = text('.dockerignore')
      .split('\n')
      .filter((line) => line.startsWith('!'))
      .map((line) => line.slice(1))
    const copied = lines
      .filter((line) => line.startsWith('COPY ') && !line.includes('--from='))
      .flatMap((line) => line.split(/\s+/).slice(1, -1))
    expect(copied.length).toBeGreaterThan(5)
    for (const path of copied) {
      expect([path, existsSync(join(root, path))]).toEqual([path, true])
      expect([path, allowed.some((entry) => path === entry || path.startsWith(`${entry}/`))]).toEqual([
        path,
        true,
      ])
    }
  })

  test('runs as a user without rights and installs from the lock', () => {
    const last = lines.slice(lines.findLastIndex((line) => line.startsWith('FROM ')))
    expect(last).toContain('USER orrery')
    expect(last.findIndex((line) => line.startsWith('USER'))).toBeLessThan(
      last.findIndex((line) => line.startsWith('CMD')),
    )
    expect(lines.some((line) => /^RUN .*\bnpm ci --omit=dev\b/.test(line))).toBe(true)
  })
})

proved(
  'temporal-config/namespace.sh makes the namespace on a real server, and again without harm',
  async () => {
    using folder = temporaryFolder()
    const quiet = { log: openLog('silent'), environment: childEnvironment, onProgress: () => undefined }
    const program = await findTemporalProgram({ ...quiet, named: undefined, cacheDir })
    const server = await openTemporal({
      ...quiet,
      dataDir: folder.path,
      cacheDir,
      namespace: 'default',
      program,
    })
    const tools = mkdtempSync(join(runFolder(), 'orrery-tools-'))
    try {
      symlinkSync(program, join(tools, 'temporal'))
      const env = { PATH: `${tools}:/usr/bin:/bin`, HOME: folder.path, TEMPORAL_ADDRESS: server.address }
      const settings = readTemporalSettings()
      for (let round = 0; round < 2; round++)
        execFileSync('/bin/sh', [join(root, 'temporal-config/namespace.sh'), 'fresh'], { env, stdio: 'pipe' })
      const say = (...args: string[]): string =>
        execFileSync(
          join(tools, 'temporal'),
          ['operator', ...args, '--namespace', 'fresh', '--output', 'json'],
          { env, encoding: 'utf8' },
        )
      const attributes = z
        .object({ customAttributes: z.record(z.string(), z.string()) })
        .parse(JSON.parse(say('search-attribute', 'list'))).customAttributes
      expect(attributes).toEqual(
        Object.fromEntries(
          Object.entries(settings.searchAttributes).map(([name, type]) => [
            name,
            `INDEXED_VALUE_TYPE_${type.toUpperCase()}`,
          ]),
        ),
      )
      expect(say('namespace', 'describe')).toContain(`"${Number.parseInt(settings.retention, 10) * 3600}s"`)
    } finally {
      rmSync(tools, { recursive: true, force: true })
      await server.stop()
    }
  },
  900_000,
)
