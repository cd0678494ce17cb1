import type { EngineSockets } from '../clients/docker.ts'
import {
  openKubernetesCluster,
  type ClusterOptions,
  type KubernetesCluster,
} from '../clients/kubernetes-cluster.ts'
import { KubernetesError } from '../clients/kubernetes.ts'
import type { SshProbe } from '../clients/ssh/target.ts'
import { answeringEnginesScript, engineWords, enginesScript, localEngines } from './discovery/engines.ts'
import { quote } from '../shell/quote.ts'
import { siteMemoryLimit, memoryLimitWords } from '../drivers/runtime/contract/cgroups.ts'
import { missingRights } from '../drivers/runtime/kubernetes/rights.ts'
import { LinkError, type SiteShell } from '../shell/site-shell.ts'
import { Refusal } from '../refusal.ts'
import { parseHttps } from './endpoint.ts'
import type { Links } from './links.ts'
import { unheededTrust } from './rules.ts'
import { maskedUrls } from '../domains/environments/secrets.ts'
import type { ConnectionDocument, CheckStage } from '../domains/environment-connections/schemas.ts'
import { memberText, present } from '../json-object.ts'
import { reasonText } from '../outside-text.ts'

export interface CheckParts {
  links: Pick<Links, 'target' | 'secret' | 'sessions' | 'localShell'>
  addressAllowed: (address: string) => true | string
  /** The engines of this machine, for connections of type local. */
  engineSockets: EngineSockets
  /** The identity that the provider of a cloud connection reports for its credential. */
  cloudIdentity?: (connection: ConnectionDocument) => Promise<string | undefined>
}

/** What the client of a connection's Kubernetes cluster needs. */
export type ClusterParts = Pick<CheckParts, 'links' | 'addressAllowed'>

/** The address of the service for clients, for the line that pins a host key. */
export interface PinParts {
  api: { url: string; tokenNeeded: boolean }
}

/** The result of a check; a fault at the other side is part of it and is not thrown. */
export interface CheckResult {
  healthy: boolean
  /** One sentence, for people. */
  message: string
  latencyMs: number
  stages: CheckStage[]
  /** Address, host key, banner: facts that may be shown and recorded. */
  facts: Record<string, unknown>
}

type Found = Pick<CheckResult, 'facts'> & { stages: CheckStage[]; message?: string; waits?: boolean }

/**
 * Checks the health of a connection by stages, within 40 s. `trial` is a name that no other check
 * has, for a connection that is not stored: the check records nothing, and its logins at the
 * host and on the way there are its own and end with the check.
 */
export const checkConnection = async (
  parts: CheckParts & PinParts,
  connection: ConnectionDocument,
  options: { actor?: string; trial?: string } = {},
): Promise<CheckResult> => {
  const startedAt = performance.now()
  const found = await (connection.type === 'ssh'
    ? checkSsh(parts, connection, options)
    : connection.type === 'local'
      ? checkLocal(parts, connection)
      : connection.type === 'kubernetes'
        ? checkKubernetes(parts, connection, options)
        : checkCloud(parts, connection, options))
  const failed = found.stages.find(({ ok }) => !ok)
  const healthy = failed === undefined && found.stages.length > 0
  const message =
    found.message ??
    (failed === undefined ? 'all stages passed' : `${failed.stage}: ${failed.detail ?? 'failed'}`)
  return {
    healthy,
    message: maskedUrls(
      [message, ...unheeded(connection).filter((note) => !message.includes(note))].join('; '),
    ),
    latencyMs: Math.round(performance.now() - startedAt),
    stages: found.stages.map((stage) =>
      stage.detail === undefined ? stage : { ...stage, detail: maskedUrls(stage.detail) },
    ),
    facts: found.facts,
  }
}

const unheeded = (connection: ConnectionDocument): string[] =>
  unheededTrust(connection).map(({ path, message }) => `${path} ${message}`)

const timed = async (
  stage: CheckStage['stage'],
  work: () => Promise<string | undefined>,
): Promise<CheckStage> => {
  const startedAt = performance.now()
  const spent = (): number => Math.round(performance.now() - startedAt)
  try {
    const detail = await work()
    return { stage, ok: true, milliseconds: spent(), ...(detail === undefined ? {} : { detail }) }
  } catch (error) {
    return { stage: stageOf(error) ?? stage, ok: false, milliseconds: spent(), detail: detailOf(error) }
  }
}

const stageOf = (error: unknown): CheckStage['stage'] | undefined =>
  error instanceof KubernetesError
    ? error.stage
    : error instanceof LinkError && error.stage !== 'link'
      ? error.stage
      : undefined

/** What a program has written on its standard error, for a detail. */
const wordsOf = (stderr: string): string => reasonText(maskedUrls(stderr), { characters: 500 })

const detailOf = (error: unknown): string =>
  (error instanceof Error ? error.message : String(error)).slice(0, 2_000)

// ---------------------------------------------------------------------------------------------------------------------
// ssh

/**
 * A line for a shell that saves the connection with a fingerprint; nothing is pinned before a
 * person runs it.
 */
const pinLine = (
  { api }: PinParts,
  { createdAt: _, ...connection }: ConnectionDocument,
  fingerprint: string,
): string => {
  const document = {
    ...connection,
    configuration: { ...connection.configuration, hostKeyFingerprints: [fingerprint] },
  }
  const token = api.tokenNeeded ? '-H "authorization: Bearer $SERVICE_API_TOKEN" ' : ''
  const url = `${api.url}/environment-connections/${encodeURIComponent(connection.id)}/`
  return `curl -X PUT ${token}-H 'content-type: application/json' -d ${quote(JSON.stringify(document))} ${quote(url)}`
}

const checkSsh = async (
  { links, api }: CheckParts & PinParts,
  connection: ConnectionDocument,
  { actor, trial }: { actor?: string; trial?: string },
): Promise<Found> => {
  let target
  try {
    target = await links.target(connection, {
      purpose: trial === undefined ? 'check the connection' : 'test a connection before it is saved',
      ...(actor === undefined ? {} : { actor }),
      ...(trial === undefined ? {} : { trial }),
    })
  } catch (error) {
    return {
      stages: [{ stage: stageOf(error) ?? 'name', ok: false, milliseconds: 0, detail: detailOf(error) }],
      facts: {},
    }
  }
  try {
    const probe = await links.sessions.probe(target)
    const { stages, healthy, message } = probe
    const facts = sshFacts(probe)
    if (healthy)
      return { stages: [...stages, ...(await siteStages(links.sessions.shell(target), connection))], facts }
    if (probe.hostKeyIsNew !== true || probe.hostKey === undefined || stages.at(-1)?.stage !== 'host key')
      return { stages, facts, message }
    const remedy =
      trial === undefined
        ? `if it is right, pin it: ${pinLine({ api }, connection, probe.hostKey.fingerprint)}`
        : 'if it is right, give it in configuration.hostKeyFingerprints'
    return { stages, facts, message: `${message}; ${remedy}` }
  } finally {
    if (trial !== undefined) await links.sessions.forget([target], { wayToo: true })
  }
}

const sshFacts = ({ address, banner, hostKey, hostKeyIsNew, prompts }: SshProbe): Record<string, unknown> =>
  present({
    ...{ address, banner },
    hostKey: hostKey && { host: hostKey.host, type: hostKey.type, fingerprint: hostKey.fingerprint },
    hostKeyIsNew: hostKeyIsNew === true || undefined,
    waitsForLogin: prompts === undefined ? undefined : true,
    prompts,
  })

// --------------------------------------------------------------------------------------------------------
// shell and site

const checkLocal = async (
  { links, engineSockets }: CheckParts,
  connection: ConnectionDocument,
): Promise<Found> => {
  const shell = await timed('shell', async () =>
    (await links.localShell.run('uname -sr', { deadlineMs: 10_000 })).stdout.toString().trim(),
  )
  return {
    stages: shell.ok ? [shell, ...(await siteStages(links.localShell, connection, engineSockets))] : [shell],
    facts: {},
  }
}

/**
 * Checks what tasks need of a machine whose shell answers; the first missing thing ends the check.
 * `engineSockets`: of this machine, whose engines answer at their sockets. Elsewhere the check runs
 * Docker's program, and looks for the programs of the other engines.
 */
const siteStages = async (
  shell: SiteShell,
  { configuration = {} }: ConnectionDocument,
  engineSockets?: EngineSockets,
): Promise<CheckStage[]> => {
  const stages: CheckStage[] = []
  const asksScheduler = configuration['skipSchedulerCheck'] !== true && configuration['scheduler'] !== 'none'
  for (const stage of [
    ...(asksScheduler ? [() => timed('scheduler', () => schedulerOf(shell, configuration))] : []),
    () => timed('container engine', () => enginesOf(shell, engineSockets)),
    () => timed('rights', () => rightsOf(shell, configuration)),
    () => timed('limits', () => limitsOf(shell)),
  ]) {
    const result = await stage()
    stages.push(result)
    if (!result.ok) break
  }
  return stages
}

const deadlineMs = 15_000
/**
 * `timeout` ends a silent controller's command at the site too, and not only the wait for it here.
 */
const schedulerScript = `LC_ALL=C; export LC_ALL
command -v sinfo >/dev/null 2>&1 || { echo none; exit 0; }
if command -v timeout >/dev/null 2>&1; then timeout 10 sinfo -h -a -o '%R'; else sinfo -h -a -o '%R'; fi
`

const schedulerOf = async (shell: SiteShell, configuration: Record<string, unknown>): Promise<string> => {
  const partition = memberText(configuration['partition'])
  const demanded = configuration['scheduler'] === 'slurm' || partition !== ''
  const { code, stdout, stderr } = await shell.run(schedulerScript, { deadlineMs })
  const answer = stdout.toString().trim()
  if (code === 0 && answer === 'none') {
    if (demanded)
      throw new Error(
        'the connection wants Slurm, and the commands of Slurm are not in the search path of the account',
      )
    return 'none found'
  }
  if (code !== 0) {
    const words =
      code === 124
        ? 'sinfo did not answer within 10 s'
        : `sinfo ended with ${code ?? 'a signal'}: ${wordsOf(stderr)}`
    if (demanded) throw new Error(words)
    return `Slurm is installed and does not answer: ${words}`
  }
  const partitions = [...new Set(answer.split('\n'))].filter((name) => name !== '')
  if (partition !== '' && !partitions.includes(partition))
    throw new Error(
      `the partition ${JSON.stringify(partition)} does not exist; there are ` +
        (partitions.slice(0, 50).join(', ') || 'none'),
    )
  return `Slurm with partition${partitions.length === 1 ? '' : 's'} ${partitions.slice(0, 50).join(', ')}`
}

const enginesOf = async (shell: SiteShell, sockets: EngineSockets | undefined): Promise<string> => {
  const { stdout } = await shell.run(sockets === undefined ? answeringEnginesScript : enginesScript, {
    deadlineMs,
  })
  const programs = stdout
    .toString()
    .split('\n')
    .filter((name) => name !== '')
  const words = sockets === undefined ? programs : (await localEngines(programs, sockets)).map(engineWords)
  return words.length === 0 ? 'none found' : words.join(', ')
}

const rightsOf = async (shell: SiteShell, configuration: Record<string, unknown>): Promise<string> => {
  const directory = memberText(configuration['workDirectory'])
  // A check creates nothing: the existing part of the path must be a directory with write
  // permission.
  const { code, stdout, stderr } = await shell.run(
    `wanted=${directory === '' ? '"$HOME/.orrery"' : quote(directory)}
at=$wanted
while [ ! -e "$at" ]; do at=$(dirname -- "$at"); done
[ -d "$at" ] || { echo "$at is not a directory" >&2; exit 1; }
[ -w "$at" ] && [ -x "$at" ] || { echo "$(id -un) may not write in $at" >&2; exit 1; }
printf '%s' "$wanted"`,
    { deadlineMs },
  )
  if (code !== 0) throw new Error(`the work directory cannot be made: ${wordsOf(stderr)}`)
  return `work directory ${stdout.toString()}`
}

/** How the memory limit of tasks that start there directly is enforced. */
const limitsOf = async (shell: SiteShell): Promise<string> => {
  const limit = await siteMemoryLimit(shell, deadlineMs)
  return `${limit}: ${memoryLimitWords[limit]}`
}

// --------------------------------------------------------------------------------------------------------
// kubernetes, cloud

/** The options of a client for a connection's cluster. @throws KubernetesError for the endpoint */
export const clusterServer = (
  { links, addressAllowed }: ClusterParts,
  connection: ConnectionDocument,
  purpose: string,
  actor?: string,
): ClusterOptions => {
  const place = parseHttps(connection.endpoint)
  if (typeof place === 'string') throw new KubernetesError('name', `endpoint: ${place}`, { permanent: true })
  const authority = memberText(connection.configuration?.['certificateAuthority'])
  // The author wanted another trust than the usual authorities; it is unknown here which one.
  const distrust = authority === '' ? unheeded(connection) : []
  if (distrust.length > 0) throw new KubernetesError('host key', distrust.join('; '), { permanent: true })
  return {
    ...place,
    addressAllowed,
    ...(authority === '' ? {} : { certificateAuthority: authority }),
    token: async () => {
      const secret = await links.secret(connection, purpose, actor)
      if (secret.kind === 'kubernetes-token') return secret.token
      throw new Refusal(
        'unacceptable',
        `credentialRef ${JSON.stringify(connection.credentialRef)} is not a Kubernetes token; refer to one`,
      )
    },
  }
}

/**
 * Passes a connection's cluster, which is asked without a token where the connection has no
 * credential, to `work`. @throws Refusal when the credential is missing or has the wrong form,
 * KubernetesError for the endpoint
 */
export const withCluster = async <T>(
  parts: ClusterParts,
  connection: ConnectionDocument,
  purpose: string,
  work: (cluster: KubernetesCluster, host: string) => Promise<T>,
  actor?: string,
): Promise<T> => {
  const { token, ...server } = clusterServer(parts, connection, purpose, actor)
  const secret = connection.credentialRef === '' ? undefined : await token()
  const cluster = openKubernetesCluster({ ...server, token: () => Promise.resolve(secret) })
  try {
    return await work(cluster, server.host)
  } finally {
    cluster.close()
  }
}

export const connectionNamespace = (connection: ConnectionDocument): string =>
  memberText(connection.configuration?.['namespace']) || 'default'

const checkKubernetes = async (
  parts: CheckParts,
  connection: ConnectionDocument,
  { actor }: { actor?: string },
): Promise<Found> => {
  const stages: CheckStage[] = []
  const facts: Record<string, unknown> = {}
  let asked = false
  const ask = async (cluster: KubernetesCluster): Promise<string> => {
    asked = true
    const { version, address } = await cluster.probe()
    facts['address'] = address
    const words = memberText(version)
    if (words === '')
      throw new KubernetesError('login', 'the answer has no version: this is no Kubernetes API')
    return `Kubernetes ${words}`
  }
  const login = await timed('login', () => withCluster(parts, connection, 'check the connection', ask, actor))
  const order = ['name', 'route', 'host key', 'login'] as const
  // The request passed the stages before the one at which it failed.
  for (const stage of asked ? order.slice(0, order.indexOf(login.stage as (typeof order)[number])) : [])
    stages.push({ stage, ok: true, milliseconds: 0 })
  stages.push(login)
  if (!login.ok) return { stages, facts }
  const cluster = openKubernetesCluster(clusterServer(parts, connection, 'check the connection', actor))
  try {
    stages.push(
      await timed('rights', async () => {
        const namespace = connectionNamespace(connection)
        const lacking = await missingRights(cluster, namespace)
        if (lacking.length > 0)
          throw new Error(`in namespace ${namespace} the token's account may not: ${lacking.join(', ')}`)
        return `jobs and pods in namespace ${namespace}`
      }),
    )
  } finally {
    cluster.close()
  }
  const last = stages.at(-1)
  if (last !== undefined && !last.ok) last.stage = 'rights'
  return { stages, facts }
}

const checkCloud = async (
  { links, cloudIdentity }: CheckParts,
  connection: ConnectionDocument,
  { actor }: { actor?: string },
): Promise<Found> => ({
  stages: [
    await timed('login', async () => {
      if (connection.credentialRef === '')
        throw new Error('credentialRef is empty; store a cloud credential and refer to it')
      const secret = await links.secret(connection, 'check the connection', actor)
      const provider = memberText(connection.configuration?.['provider'])
      if (secret.kind !== 'cloud-credential' || secret.provider !== provider)
        throw new Error(
          `credentialRef ${JSON.stringify(connection.credentialRef)} is not a credential of ${provider}`,
        )
      const identity = await cloudIdentity?.(connection)
      return identity === undefined
        ? `the credential is complete; ${provider} was not asked`
        : `${provider} knows the credential as ${identity}`
    }),
  ],
  facts: {},
})
