/**
 * Sites for a person: hosts with sshd, and a Slurm cluster, on this machine, up until they are taken down.
 *
 *   npm run site -- ssh up [--hosts N] [--name X] [--shared] [--trust] [--loopback]
 *   npm run site -- slurm up [--nodes N] [--name X] [--accounting] [--rest]
 *   npm run site -- ssh|slurm status|down [--name X]
 *
 * `up` starts a process that keeps the site and tells how to use it; a second `up` finds the first. Exit codes: 0 done (`status`: it is
 * up), 1 not (`status`: it is down), 2 wrong usage.
 */
import { spawn } from 'node:child_process'
import { existsSync, openSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { identify, isAlive, signal } from '../../src/embedded/processes.ts'
import type { ProcessIdentity } from '../../src/embedded/processes.ts'
import { until } from './ground.ts'
import { startLoopbackSsh } from './loopback.ts'
import { startSlurm } from './slurm.ts'
import { startSsh } from './ssh.ts'

const usage = `npm run site -- ssh up [--hosts N] [--name X] [--shared] [--trust] [--loopback]
npm run site -- slurm up [--nodes N] [--name X] [--accounting] [--rest]
npm run site -- ssh|slurm status|down [--name X]
`

/** What the keeper of a site leaves in its folder for the others. */
interface Kept {
  kind: string
  name: string
  /** Two checkouts on one machine may use one name. */
  checkout: string
  keeper: ProcessIdentity
  folder: string
  text: string
}

const checkout = resolve(import.meta.dirname, '../..')

const options = () => {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      hosts: { type: 'string', default: '2' },
      nodes: { type: 'string', default: '2' },
      name: { type: 'string', default: 'default' },
      shared: { type: 'boolean', default: false },
      trust: { type: 'boolean', default: false },
      loopback: { type: 'boolean', default: false },
      accounting: { type: 'boolean', default: false },
      rest: { type: 'boolean', default: false },
    },
  })
  const [kind = '', verb = ''] = positionals
  if (!['ssh', 'slurm'].includes(kind) || !['up', 'down', 'status', 'keep'].includes(verb)) throw new TypeError('which site, and what?')
  for (const name of ['hosts', 'nodes'] as const) {
    const number = Number(values[name])
    if (!Number.isInteger(number) || number < 1 || number > 50)
      throw new TypeError(`--${name} ${values[name]}: a whole number from 1 to 50`)
  }
  if (!/^[\w-]{1,40}$/.test(values.name)) throw new TypeError(`--name ${values.name}: letters, digits, _ and -`)
  return { ...values, kind, verb, hosts: Number(values.hosts), nodes: Number(values.nodes) }
}
type Options = ReturnType<typeof options>

/** The sites of this checkout that are up. */
const kept = (): Kept[] =>
  readdirSync(tmpdir())
    .filter((entry) => entry.startsWith('orrery-site-'))
    .map((entry) => join(tmpdir(), entry, 'site.json'))
    .filter((file) => existsSync(file))
    .map((file) => JSON.parse(readFileSync(file, 'utf8')) as Kept)
    .filter((site) => site.checkout === checkout && isAlive(site.keeper))

const found = ({ kind, name }: Options): Kept | undefined => kept().find((site) => site.kind === kind && site.name === name)

/** A connection as `POST /connection-tests/` takes it and an environment has it; the key is imported under `site` before. */
const connection = (id: string, host: { address: string; port: number; user: string; knownHosts: string }): string =>
  JSON.stringify(
    {
      ...{ id, environmentId: 'sites', name: id, type: 'ssh', endpoint: host.address, username: host.user, credentialRef: 'REFERENCE' },
      configuration: { port: host.port, knownHosts: host.knownHosts },
    },
    undefined,
    2,
  )

const importKey = (path: string): string =>
  `The key into the vault (answers the REFERENCE for "credentialRef"):
  { echo 'id: site'; echo 'privateKey: |'; sed 's/^/  /' ${path}; } | curl -sS -H 'Content-Type: application/yaml' --data-binary @- $API/ssh-keys/import/`

const bring = async (wanted: Options): Promise<{ folder: string; stop: () => Promise<void>; text: string }> => {
  const login = (site: { sshOptions: readonly string[] }, host: { user: string; port: number; address: string }): string =>
    `ssh ${site.sshOptions.join(' ')} -p ${host.port} ${host.user}@${host.address}`
  if (wanted.kind === 'slurm') {
    const site = await startSlurm(wanted)
    const { login: host } = site
    const text = [
      `Slurm is up: login node ${host.address}, compute nodes ${site.nodes.map((node) => node.name).join(', ')}, partitions ${site.partitions.join(', ')}.`,
      `To log in:\n  ${login(site, host)}`,
      `From this machine, work in ${site.scratch}:\n  export PATH=${site.commands}:$PATH; sinfo`,
      ...(site.restUrl === undefined ? [] : [`slurmrestd: ${site.restUrl}; a token of ${site.user} for a day:\n  ${await site.token()}`]),
      importKey(site.key.path),
      `The connection:\n${connection('slurm-login', { ...host, knownHosts: host.knownHosts() })}`,
    ].join('\n\n')
    return { folder: site.folder, stop: site.stop, text }
  }
  const site = wanted.loopback ? await startLoopbackSsh(wanted) : await startSsh(wanted)
  const text = [
    `Up:\n${site.hosts.map((host) => `  ${host.name}  ${host.address} port ${host.port}, account ${host.user}`).join('\n')}`,
    `To log in:\n${site.hosts.map((host) => `  ${login(site, host)}`).join('\n')}`,
    importKey(site.key.path),
    `The connections:\n${site.hosts.map((host) => connection(host.name, { ...host, knownHosts: host.knownHosts() })).join('\n')}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

/** The process that the site hangs on. It says what it has to say through the file of the site, or on standard error when it fails. */
const keep = async (wanted: Options): Promise<void> => {
  const { folder, stop, text } = await bring(wanted)
  const site: Kept = { kind: wanted.kind, name: wanted.name, checkout, keeper: identify(process.pid)!, folder, text }
  writeFileSync(join(folder, 'site.json'), JSON.stringify(site))
  const wait = setInterval(() => undefined, 2 ** 31 - 1)
  for (const name of ['SIGTERM', 'SIGINT'] as const)
    process.once(name, () => {
      clearInterval(wait)
      void stop()
    })
}

const up = async (wanted: Options): Promise<void> => {
  const before = found(wanted)
  if (before !== undefined) {
    process.stdout.write(`It was up already.\n\n${before.text}\n`)
    return
  }
  const log = join(tmpdir(), `orrery-site-${process.pid}.log`)
  const errors = openSync(log, 'w', 0o600)
  const keeper = spawn(
    process.execPath,
    [...process.execArgv, import.meta.filename, ...process.argv.slice(2).map((word) => (word === 'up' ? 'keep' : word))],
    {
      cwd: '/',
      detached: true,
      stdio: ['ignore', 'ignore', errors],
    },
  )
  let code: number | null | undefined
  keeper.once('exit', (ended) => (code = ended ?? 1))
  await until(
    'the site',
    async () => code !== undefined || found(wanted) !== undefined,
    () => readFileSync(log, 'utf8'),
    300_000,
  )
  keeper.unref()
  const said = readFileSync(log, 'utf8')
  rmSync(log)
  const site = found(wanted)
  if (site === undefined) throw new Error(/^Error: .*$/m.exec(said)?.[0].slice('Error: '.length) ?? said)
  process.stdout.write(
    `${site.text}\n\nnpm run site -- ${wanted.kind} down${wanted.name === 'default' ? '' : ` --name ${wanted.name}`} takes it down.\n`,
  )
}

const down = async (wanted: Options): Promise<void> => {
  const site = found(wanted)
  if (site === undefined) {
    process.stdout.write('It was not up.\n')
    return
  }
  signal(site.keeper, 'SIGTERM')
  await until('the site is gone', async () => !isAlive(site.keeper) && !existsSync(site.folder))
  process.stdout.write('It is down; nothing of it is left.\n')
}

const wantedOrEnd = (): Options => {
  try {
    return options()
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n\n${usage}`)
    process.exit(2)
  }
}

const wanted = wantedOrEnd()
if (wanted.verb === 'keep') await keep(wanted)
else if (wanted.verb === 'up')
  await up(wanted).catch((error: unknown) => {
    process.stderr.write(`${(error as Error).message}\n`)
    process.exitCode = 1
  })
else if (wanted.verb === 'down') await down(wanted)
else {
  const site = found(wanted)
  process.stdout.write(site === undefined ? 'It is down.\n' : `${site.text}\n`)
  process.exitCode = site === undefined ? 1 : 0
}
