/**
 * Sites for interactive use: hosts with sshd, a Slurm cluster, Kubernetes, a Docker engine,
 * functions, servers of buckets, a cloud provider. They run on this machine until `down` ends them.
 *
 *   npm run site -- ssh up [--hosts N] [--name X] [--shared] [--trust] [--loopback]
 *   npm run site -- slurm up [--nodes N] [--name X] [--accounting] [--rest]
 *   npm run site -- kubernetes up [--nodes N] [--nodes-fake N] [--name X]
 *   npm run site -- ssh-kernel|nfs|docker|serverless|s3|gcs|cloud up [--name X]
 *   npm run site -- KIND status|down [--name X]
 *
 * `up` lists the needs of the site, starts a process that keeps the site and prints how to use it;
 * a second `up` finds the first site. A site that is not up after `--wait` seconds (300) is ended,
 * and Ctrl-C ends it too. Exit codes: 0 done (`status`: it is up), 1 not (`status`: it is down), 2
 * wrong usage.
 */
import { spawn } from 'node:child_process'
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { ArgumentError, readArguments } from '../src/programs/arguments.ts'
import { identify, stillRuns, signalKnown } from '../src/embedded/processes.ts'
import type { KnownProcess } from '../src/embedded/processes.ts'
import { writeWhole } from '../src/whole-file.ts'
import { startCloud } from './cloud.ts'
import { loadSystemImage, openDockerEngine } from './docker.ts'
import { siteKinds, siteLacks, siteNeeds, type SiteKind } from './needs.ts'
import { startFunctions } from './functions.ts'
import { startGcs } from './gcs.ts'
import { openGround, until } from './ground.ts'
import { buildKubernetes } from './kubernetes-build.ts'
import { startKubernetes } from './kubernetes.ts'
import { startLoopbackSsh } from './loopback.ts'
import { startNfs } from './nfs.ts'
import { startS3 } from './s3.ts'
import { startSlurm } from './slurm.ts'
import { startKernelHost } from './ssh-kernel.ts'
import { sshOptions, startSsh } from './ssh.ts'

const usage = `npm run site -- ssh up [--hosts N] [--name X] [--shared] [--trust] [--loopback]
npm run site -- slurm up [--nodes N] [--name X] [--accounting] [--rest]
npm run site -- kubernetes up [--nodes N] [--nodes-fake N] [--name X]
npm run site -- ssh-kernel|nfs|docker|serverless|s3|gcs|cloud up [--name X]
npm run site -- ssh|ssh-kernel|nfs|slurm|kubernetes|docker|serverless|s3|gcs|cloud status|down [--name X]
with up: [--wait SECONDS], 300 without
npm run site -- --help | --version
`

const isKind = (word: string): word is SiteKind => (siteKinds as readonly string[]).includes(word)

/** The record that the keeper of a site writes to its folder. */
interface Kept {
  kind: SiteKind
  name: string
  /** Two checkouts on one machine may use one name. */
  checkout: string
  keeper: KnownProcess
  folder: string
  text: string
}

const checkout = resolve(import.meta.dirname, '..')

const optionsOf = {
  hosts: { type: 'string' },
  nodes: { type: 'string' },
  'nodes-fake': { type: 'string' },
  name: { type: 'string', default: 'default' },
  wait: { type: 'string', default: '300' },
  shared: { type: 'boolean', default: false },
  trust: { type: 'boolean', default: false },
  loopback: { type: 'boolean', default: false },
  accounting: { type: 'boolean', default: false },
  rest: { type: 'boolean', default: false },
} as const

const wanted = readArguments(
  { usage, options: optionsOf, positionals: [2, 2] },
  ({ values, positionals }) => {
    const [kind = '', verb = ''] = positionals
    if (!isKind(kind)) throw new ArgumentError(`${kind} is not a kind of site`)
    if (!['up', 'down', 'status', 'keep'].includes(verb))
      throw new ArgumentError(`${verb}: give up, down or status`)
    const count = (name: 'hosts' | 'nodes' | 'nodes-fake', most: number): number | undefined => {
      const text = values[name]
      const number = Number(text)
      if (text !== undefined && (!Number.isInteger(number) || number < 1 || number > most))
        throw new ArgumentError(`--${name} ${text}: a whole number from 1 to ${most}`)
      return text === undefined ? undefined : number
    }
    if (!/^[\w-]{1,40}$/.test(values.name))
      throw new ArgumentError(`--name ${values.name}: letters, digits, _ and -`)
    const waitSeconds = Number(values.wait)
    if (!Number.isInteger(waitSeconds) || waitSeconds < 1 || waitSeconds > 86_400)
      throw new ArgumentError(`--wait ${values.wait}: a whole number of seconds from 1 to 86400`)
    // The site sets the counts that the arguments omit.
    const counts = {
      hosts: count('hosts', 50),
      nodes: count('nodes', 50),
      fakeNodes: count('nodes-fake', 1000),
    }
    const said = Object.fromEntries(Object.entries(counts).filter(([, number]) => number !== undefined)) as {
      [name in keyof typeof counts]?: number
    }
    const { name, shared, trust, loopback, accounting, rest } = values
    return { kind, verb, name, waitSeconds, shared, trust, loopback, accounting, rest, ...said }
  },
)
type Options = typeof wanted

/** The record of a site's keeper; undefined while the keeper starts or ends. */
const readKept = (file: string): Kept | undefined => {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Kept
  } catch {
    return undefined
  }
}

/** The running sites of this checkout. */
const kept = (): Kept[] =>
  readdirSync(tmpdir())
    .filter((entry) => entry.startsWith('orrery-site-'))
    .map((entry) => readKept(join(tmpdir(), entry, 'site.json')))
    .filter((site) => site?.checkout === checkout && stillRuns(site.keeper)) as Kept[]

const found = ({ kind, name }: Options): Kept | undefined =>
  kept().find((site) => site.kind === kind && site.name === name)

/**
 * A connection in the form of `POST /connection-tests/` and of environments. Its key is imported as
 * `site` before.
 */
const connection = (
  id: string,
  host: { address: string; port: number; user: string; knownHosts: string },
): string =>
  JSON.stringify(
    {
      ...{
        id,
        environmentId: 'sites',
        name: id,
        type: 'ssh',
        endpoint: host.address,
        username: host.user,
        credentialRef: 'REFERENCE',
      },
      configuration: { port: host.port, knownHosts: host.knownHosts },
    },
    undefined,
    2,
  )

const importKey = (path: string): string =>
  `The key into the vault (answers the REFERENCE for "credentialRef"):
  { echo 'id: site'; echo 'privateKey: |'; sed 's/^/  /' ${path}; } |
  curl -sS -H 'Content-Type: application/yaml' --data-binary @- $API/ssh-keys/import/`

interface Brought {
  /** The folder is removed with the site. */
  folder: string
  stop: () => Promise<void>
  text: string
}

const login = (
  site: { sshOptions: readonly string[] },
  host: { user: string; port: number; address: string },
): string => `ssh ${site.sshOptions.join(' ')} -p ${host.port} ${host.user}@${host.address}`

const bringSlurm = async (wanted: Options): Promise<Brought> => {
  const site = await startSlurm(wanted)
  const { login: host } = site
  const text = [
    `Slurm is up: login node ${host.address}, compute nodes ` +
      `${site.nodes.map((node) => node.name).join(', ')}, partitions ${site.partitions.join(', ')}.`,
    `To log in:\n  ${login(site, host)}`,
    `From this machine, work in ${site.scratch}:\n  export PATH=${site.commands}:$PATH; sinfo`,
    ...(site.restUrl === undefined
      ? []
      : [`slurmrestd: ${site.restUrl}; a token of ${site.user} for a day:\n  ${await site.token()}`]),
    importKey(site.key.path),
    `The connection:\n${connection('slurm-login', { ...host, knownHosts: host.knownHosts() })}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bringSsh = async (wanted: Options): Promise<Brought> => {
  const site = wanted.loopback ? await startLoopbackSsh(wanted) : await startSsh(wanted)
  const text = [
    `Up:\n${site.hosts
      .map((host) => `  ${host.name}  ${host.address} port ${host.port}, account ` + host.user)
      .join('\n')}`,
    `To log in:\n${site.hosts.map((host) => `  ${login(site, host)}`).join('\n')}`,
    importKey(site.key.path),
    [
      'The connections:',
      ...site.hosts.map((host) => connection(host.name, { ...host, knownHosts: host.knownHosts() })),
    ].join('\n'),
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bringKernelHost = async (): Promise<Brought> => {
  const site = await startKernelHost()
  const { address, user, knownHosts, key } = site
  const folder = dirname(key.path)
  const options = { sshOptions: sshOptions(key.path, join(folder, 'known_hosts')) }
  const hosts = Object.entries(site.ports).map(([name, port]) => ({
    name,
    host: { address, port, user, knownHosts },
  }))
  const text = [
    'A host with a kernel of its own is up; its cgroups are of version 2. Logins by port are born ' +
      'in a cgroup of the account, below one, in one of root.',
    `To log in:\n${hosts.map(({ host }) => `  ${login(options, host)}`).join('\n')}`,
    importKey(key.path),
    `The connections:\n${hosts.map(({ name, host }) => connection(name, host)).join('\n')}`,
  ].join('\n\n')
  return { folder, stop: () => Promise.resolve(site[Symbol.asyncDispose]()), text }
}

const bringNfs = async (): Promise<Brought> => {
  const site = await startNfs()
  const { address, user, knownHosts, key, ports } = site.host
  const folder = dirname(key.path)
  const host = { address, user, knownHosts, port: ports.own }
  const storage = {
    ...{ id: 'nfs', name: 'nfs', type: 'nfs', endpoint: site.mount },
    configuration: { connectionId: 'nfs-host', browseRoots: [{ path: '/' }] },
  }
  const text = [
    `A host with a kernel of its own is up; it mounts by NFS 4.2 at ${site.mount} what it exports itself.`,
    `To log in:\n  ${login({ sshOptions: sshOptions(key.path, join(folder, 'known_hosts')) }, host)}`,
    importKey(key.path),
    `The connection:\n${connection('nfs-host', host)}`,
    `The storage:\n${JSON.stringify(storage, undefined, 2)}`,
  ].join('\n\n')
  return { folder, stop: () => Promise.resolve(site[Symbol.asyncDispose]()), text }
}

const bringKubernetes = async (wanted: Options): Promise<Brought> => {
  const site = await startKubernetes(wanted)
  const tokenFile = join(site.folder, 'token')
  const dayInSeconds = 86_400
  writeFileSync(tokenFile, await site.token('orrery', dayInSeconds), { mode: 0o600 })
  const document = {
    ...{
      id: 'kubernetes',
      environmentId: 'sites',
      name: 'kubernetes',
      type: 'kubernetes',
      endpoint: site.server,
      credentialRef: 'REFERENCE',
    },
    configuration: { namespace: site.namespace, certificateAuthority: site.certificateAuthority },
  }
  const text = [
    `Kubernetes is up: ${site.server}, nodes ` +
      site.nodes.map((node) => node.name).join(', ') +
      (wanted.fakeNodes === undefined ? '' : ` and ${wanted.fakeNodes} by kwok`) +
      `, namespace ${site.namespace}.`,
    `As its administrator:\n  export KUBECONFIG=${site.kubeconfig}; kubectl get pods`,
    `Images on the nodes: ${Object.values(site.images).join(', ')}; the first is bb:1 in the ` +
      `registry ${site.registry.address}. Claim ${site.volume.claim} is ${site.volume.folder}.`,
    `The token of the account orrery, good for a day, into the vault (answers the REFERENCE for "credentialRef"):
  echo "{\\"id\\":\\"site\\",\\"token\\":\\"$(cat ${tokenFile})\\"}" | curl -sS --json @- $API/kubernetes-tokens/`,
    `The connection:\n${JSON.stringify(document, undefined, 2)}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bringDocker = async ({ name }: Options): Promise<Brought> => {
  const ground = openGround('docker')
  try {
    const engine = await openDockerEngine({
      data: join(ground.folder, 'data'),
      kind: 'tasks',
      owner: `npm run site -- docker up --name ${name} (process ${process.pid}, ${checkout})`,
      onWait: (owner) =>
        process.stdout.write(`waiting until another Docker engine is down, that of ${owner}\n`),
    })
    const text = [
      `A Docker engine is up. Tests that need one wait until it is down.`,
      `To use it:\n  export DOCKER_HOST=unix://${engine.socket}; docker images`,
      `An image with programs of this machine: ${await loadSystemImage(engine)}`,
    ].join('\n\n')
    const stop = async (): Promise<void> => {
      await engine[Symbol.asyncDispose]()
      await ground.leave()
    }
    return { folder: ground.folder, stop, text }
  } catch (error) {
    await ground.leave()
    throw error
  }
}

const bringServerless = async (): Promise<Brought> => {
  const site = await startFunctions()
  const text = [
    `The functions of examples/functions are up, by the functions framework at ${site.framework}`,
    `As platforms serve them, at ${site.gateway}: / as Cloud Run, /function/… and ` +
      '/async-function/… as OpenFaaS, /2015-03-31/functions/… as Lambda.',
    `The access key of Lambda: ${JSON.stringify(site.accessKey)}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bringCloud = async (): Promise<Brought> => {
  const site = await startCloud({ machines: 'ssh' })
  const credential = { id: 'site', provider: 'aws', credential: site.accessKey }
  const document = {
    ...{ id: 'account', name: 'account', type: 'cloud', endpoint: site.endpoint, credentialRef: 'REFERENCE' },
    configuration: { provider: 'aws', region: site.region },
  }
  const shown = JSON.stringify(document, undefined, 2)
  const text = [
    `EC2 of ${site.region} is up: ${site.endpoint}. Its machines are hosts of this machine, with sshd.`,
    `The service reaches it with SERVICE_ALLOW_LOOPBACK_CONNECTIONS=true.`,
    `The access key into the vault (answers the REFERENCE for "credentialRef"):
  curl -sS --json '${JSON.stringify(credential)}' $API/cloud-credentials/`,
    `The connection, for "connections" of an environment with a runtime of driver cloud:\n${shown}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bringS3 = async (): Promise<Brought> => {
  const site = await startS3()
  site.bucket('data')
  const { accessKeyId, secretAccessKey } = site.accessKey
  const storage = {
    ...{
      id: 'bucket',
      name: 'bucket',
      type: 's3-compatible',
      endpoint: 's3://data',
      credentialReference: 'REFERENCE',
    },
    configuration: {
      endpointUrl: site.endpoint,
      region: 'us-east-1',
      pathStyle: true,
      signed: true,
      browseRoots: [{ path: '/' }],
    },
  }
  const credential = { id: 'site', provider: 'aws', credential: { accessKeyId, secretAccessKey } }
  const text = [
    `An S3 server is up: ${site.endpoint}, path style, region us-east-1, with the bucket data.`,
    `The access key into the vault (answers the REFERENCE for "credentialReference"):
  curl -sS --json '${JSON.stringify(credential)}' $API/cloud-credentials/`,
    `The storage, for "storages" of an environment:\n${JSON.stringify(storage, undefined, 2)}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bringGcs = async (): Promise<Brought> => {
  const site = await startGcs()
  await site.bucket('data')
  const storage = {
    ...{ id: 'bucket', name: 'bucket', type: 'gcs', endpoint: 'gs://data', credentialReference: 'REFERENCE' },
    configuration: { endpointUrl: site.endpoint, signed: true, browseRoots: [{ path: '/' }] },
  }
  const credential = join(site.folder, 'credential.json')
  const document = { id: 'site', provider: 'gcp', credential: site.account }
  writeFileSync(credential, JSON.stringify(document), { mode: 0o600 })
  const text = [
    `A server of Google's storage is up: ${site.endpoint}, with the bucket data. It keeps all in memory.`,
    `The service account into the vault (answers the REFERENCE for "credentialReference"):
  curl -sS --json @${credential} $API/cloud-credentials/`,
    `The storage, for "storages" of an environment:\n${JSON.stringify(storage, undefined, 2)}`,
  ].join('\n\n')
  return { folder: site.folder, stop: site.stop, text }
}

const bring: Readonly<Record<SiteKind, (wanted: Options) => Promise<Brought>>> = {
  ssh: bringSsh,
  'ssh-kernel': bringKernelHost,
  slurm: bringSlurm,
  kubernetes: bringKubernetes,
  docker: bringDocker,
  serverless: bringServerless,
  s3: bringS3,
  gcs: bringGcs,
  cloud: bringCloud,
  nfs: bringNfs,
}

/**
 * The process that keeps the site up. It reports through the file of the site, or on standard error
 * when it fails.
 */
const keep = async (wanted: Options): Promise<void> => {
  const { folder, stop, text } = await bring[wanted.kind](wanted)
  const site: Kept = {
    kind: wanted.kind,
    name: wanted.name,
    checkout,
    keeper: identify(process.pid)!,
    folder,
    text,
  }
  // Written atomically, because `up` reads it meanwhile.
  writeWhole(join(folder, 'site.json'), JSON.stringify(site), 0o644)
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
  process.stdout.write(`${siteNeeds(wanted)}\n`)
  const lacks = siteLacks(wanted)
  if (lacks !== undefined) throw new Error(`Nothing was started: ${lacks}.`)
  // The first build takes minutes and prints its progress, which the keeper could not.
  if (wanted.kind === 'kubernetes') await buildKubernetes()
  const site = await startKeeper(wanted)
  process.stdout.write(
    `${site.text}\n\nnpm run site -- ${wanted.kind} ` +
      `down${wanted.name === 'default' ? '' : ` --name ${wanted.name}`} takes it down.\n`,
  )
}

/**
 * Starts the process that keeps the site, and prints why it waits. @throws Error when the site is
 * not up in time; no part of it remains
 */
const startKeeper = async (wanted: Options): Promise<Kept> => {
  const folder = mkdtempSync(join(tmpdir(), 'orrery-keeper-'))
  const [progress, errors] = [join(folder, 'progress'), join(folder, 'errors')]
  const files = [openSync(progress, 'w', 0o600), openSync(errors, 'w', 0o600)] as const
  const keeper = spawn(
    process.execPath,
    [
      ...process.execArgv,
      import.meta.filename,
      ...process.argv.slice(2).map((word) => (word === 'up' ? 'keep' : word)),
    ],
    { cwd: '/', detached: true, stdio: ['ignore', ...files] },
  )
  for (const file of files) closeSync(file)
  const exited = new Promise<void>((resolve) => keeper.once('exit', () => resolve()))
  let stopped: NodeJS.Signals | undefined
  for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(name, () => (stopped = name))
  const over = (): boolean => keeper.exitCode !== null || keeper.signalCode !== null
  const deadline = performance.now() + 1000 * wanted.waitSeconds
  let said = ''
  let site: Kept | undefined
  try {
    while (site === undefined && !over() && stopped === undefined && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 25))
      site = found(wanted)
      const line = readFileSync(progress, 'utf8').trimEnd().split('\n').at(-1) ?? ''
      if (line !== said) process.stdout.write(`${line}, ${wanted.waitSeconds} s at most\n`)
      said = line
    }
    const text = readFileSync(errors, 'utf8')
    if (site === undefined && over())
      throw new Error(/^Error: .*$/m.exec(text)?.[0].slice('Error: '.length) ?? text)
  } finally {
    if (site === undefined) keeper.kill('SIGTERM')
    else keeper.unref()
    rmSync(folder, { recursive: true, force: true })
  }
  if (site !== undefined) return site
  await exited
  const why = stopped === undefined ? `not up within ${wanted.waitSeconds} s` : `stopped by ${stopped}`
  throw new Error(`${why}; nothing of the site is left.${said === '' ? '' : ` It was ${said}.`}`)
}

const down = async (wanted: Options): Promise<void> => {
  const site = found(wanted)
  if (site === undefined) {
    process.stdout.write('It was not up.\n')
    return
  }
  signalKnown(site.keeper, 'SIGTERM')
  await until('the site is gone', async () => !stillRuns(site.keeper) && !existsSync(site.folder))
  process.stdout.write('It is down; nothing of it is left.\n')
}

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
