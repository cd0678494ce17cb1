import { mkdir } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { openClock } from './clock.ts'
import { reachedHere, type Config } from './config.ts'
import { imageDigest, type EngineSockets } from './clients/docker.ts'
import { addressJudge } from './clients/denied-networks.ts'
import { openFunctions, type FunctionCredential } from './clients/functions.ts'
import { openHttp } from './clients/http.ts'
import { migrate } from './db/migrate.ts'
import { openDatabase } from './db/pool.ts'
import { openReader } from './db/reader.ts'
import { unusableDatabase } from './db/unusable.ts'
import { openRelay } from './clients/ssh/relay.ts'
import { openSshSessions } from './clients/ssh/sessions.ts'
import { signRecord } from './domains/audit-events/seal.ts'
import { recordAudit } from './domains/audit-events/store.ts'
import { openClusters } from './domains/environment-connections/clusters.ts'
import { openLinks } from './domains/environment-connections/links.ts'
import { loginRecords } from './domains/environment-connections/login-holders.ts'
import { reachOf } from './domains/environment-connections/reach.ts'
import { openFunctionCalls } from './domains/function-calls/store.ts'
import { openHostCores } from './executor/host-cores.ts'
import { openSiteDrivers } from './executor/drivers.ts'
import { openWakes } from './executor/wakes.ts'
import { openLocalShell } from './drivers/local-shell.ts'
import { withContainers } from './drivers/runtime/container/driver.ts'
import { DriverError } from './drivers/runtime/contract/driver.ts'
import { openLocalDriver } from './drivers/runtime/local/driver.ts'
import { openNoneDriver } from './drivers/runtime/none/driver.ts'
import { openCallLinks } from './drivers/runtime/serverless/links.ts'
import type { Endpoints } from './embedded/embedded.ts'
import { findRunnerProgram } from './embedded/runner-program.ts'
import { openEngine } from './engine.ts'
import { openFailpoints } from './failpoints.ts'
import type { Surroundings } from './program.ts'
import { openCompute } from './schedulers/compute.ts'
import { dataConverter } from './vault/data-converter.ts'
import { ensureKeyFile, openVaultKeys, type VaultKeys } from './vault/keys.ts'
import { payloadCodec } from './vault/payload-codec.ts'
import type { SecretOpener } from './vault/secret.ts'
import { openVault } from './vault/vault.ts'

/** Folder of work directories below the data folder, and of the local driver's own files. */
const workFolder = (config: Config): string => join(config.dataDir, 'work')
const taskFolder = (config: Config): string => join(config.dataDir, 'tasks')
/** Of function calls: their work directories and records. */
const functionFolder = (config: Config): string => join(config.dataDir, 'functions')

/** The vault's keys: of the named file, or of one made in the data folder where the database is embedded; else none. */
const openKeys = async (config: Config): Promise<VaultKeys | undefined> => {
  if (config.vaultKeyFile === undefined && config.databaseUrl !== undefined) return undefined
  const file = config.vaultKeyFile ?? join(config.dataDir, 'vault.key')
  if (config.vaultKeyFile === undefined) await ensureKeyFile(file)
  return openVaultKeys(file)
}

/** What a function's `credentialRef` names: a token, or the access key of an AWS credential. */
const functionCredential = async (secrets: SecretOpener, reference: string): Promise<FunctionCredential> => {
  const secret = await secrets.open(reference, { actor: 'service', purpose: 'call a function' })
  if (secret.kind === 'kubernetes-token') return { kind: 'bearer', token: secret.token }
  if (secret.kind === 'cloud-credential' && secret.provider === 'aws') {
    const { accessKeyId, secretAccessKey, sessionToken } = secret.document
    if (typeof accessKeyId === 'string' && typeof secretAccessKey === 'string')
      return { kind: 'aws', accessKeyId, secretAccessKey, ...(typeof sessionToken === 'string' ? { sessionToken } : {}) }
  }
  throw new DriverError('refused', `credential ${JSON.stringify(reference)} is neither a token nor an AWS access key; refer to one`)
}

/** The token that a Slurm runtime's `slurmrestd.credentialRef` names. */
const slurmToken = async (secrets: SecretOpener, reference: string): Promise<string> => {
  const secret = await secrets.open(reference, { actor: 'service', purpose: 'ask slurmrestd' })
  if (secret.kind === 'kubernetes-token') return secret.token
  throw new DriverError('refused', `credential ${JSON.stringify(reference)} is not a token`)
}

/**
 * Opens once what both programs share, and brings the database to the newest schema. Closed in reverse; tasks that run on this
 * machine go on.
 */
export const openParts = async ({
  config,
  log,
  traces,
  endpoints,
}: Pick<Surroundings, 'config' | 'log' | 'traces'> & { endpoints: Endpoints }) => {
  const signing: { keys?: VaultKeys | undefined } = {}
  const db = openDatabase(endpoints.databaseUrl, {
    max: 20,
    sign: (text) => signRecord(signing.keys, text),
    onError: (error) => {
      const { code, message } = error as NodeJS.ErrnoException
      log.warn({ code, reason: message }, 'a database connection was lost; the next query opens another')
    },
  })
  try {
    await migrate(db)
  } catch (error) {
    await db[Symbol.asyncDispose]()
    throw unusableDatabase(endpoints.databaseUrl, config.databaseUrl !== undefined, error)
  }
  // Passable, as the data folder is; what a task makes in it is 0700 by the driver.
  await mkdir(workFolder(config), { recursive: true, mode: 0o711 })
  await mkdir(taskFolder(config), { recursive: true, mode: 0o700 })
  const vaultKeys = await openKeys(config)
  /** Base URL of the API for clients on this machine; port 0 becomes the one that it listens on. */
  const api = { url: `http://${reachedHere(config.listenAddress)}${config.apiPrefix}`, tokenNeeded: config.apiToken !== undefined }
  signing.keys = vaultKeys
  const engine = openEngine({
    address: endpoints.temporalAddress,
    namespace: config.temporalNamespace,
    taskQueue: config.temporalTaskQueue,
    plugins: traces.temporalPlugins,
    dataConverter: dataConverter(vaultKeys),
    apiUrl: () => api.url,
  })
  const compute = openCompute({ threads: Math.max(1, availableParallelism() - 1) })
  const vault = openVault({
    db,
    keys: vaultKeys,
    outside: { variables: config.credentialVariables, folders: config.credentialFolders },
    audit: (event) => recordAudit(db, event),
  })
  const taskVariable = `${config.taskVariablePrefix}TASK`
  // Looked for at once, so that the first task need not wait for it; whoever needs it later asks again.
  let runner: Promise<string> | undefined
  const runnerProgram = (): Promise<string> => {
    const { cacheDir, childEnvironment: environment } = config
    const onProgress = (message: string): void => {
      log.debug(message)
    }
    return (runner ??= findRunnerProgram({ cacheDir, environment, log, onProgress }).catch((error: unknown) => {
      runner = undefined
      throw error
    }))
  }
  runnerProgram().catch((error: unknown) => {
    log.warn({ err: error }, 'no task can be started on this machine yet')
  })
  const processes = openLocalDriver({ controlDirectory: taskFolder(config), taskVariable, runnerProgram })
  const rehearsal = openNoneDriver()
  const localShell = openLocalShell()
  const engineSockets: EngineSockets = { docker: config.dockerSocket, podman: config.podmanSocket }
  const local = withContainers(processes, {
    shell: localShell,
    root: () => Promise.resolve(config.dataDir),
    taskVariable,
    engine: 'auto',
    endsDescendants: true,
    imageDigest: ({ engine, socket = engineSockets[engine], id, name }) => imageDigest(socket, id, name),
  })
  const addressAllowed = addressJudge({ denied: config.deniedNetworks, allowLoopback: config.allowLoopbackConnections })
  const relay = vaultKeys && {
    keys: vaultKeys,
    records: loginRecords(db),
    address: config.relayAddress,
    warn: (error: unknown, message: string) => {
      log.warn({ err: error }, message)
    },
  }
  const sessions = openSshSessions({
    addressAllowed,
    allowProxyCommand: config.allowProxyCommand,
    ...(relay && { others: (held) => openRelay(relay, held) }),
  })
  const http = openHttp({ addressAllowed })
  const functions = openFunctions({ addressAllowed })
  const callLinks = vaultKeys === undefined ? undefined : openCallLinks(vaultKeys)
  const links = openLinks({
    db,
    secrets: vault,
    sessions,
    localShell,
    allowProxyCommand: config.allowProxyCommand,
    trustOnFirstUse: config.sshTrustOnFirstUse,
  })
  const clusters = openClusters({ db, links, addressAllowed })
  const sites = openSiteDrivers({
    local,
    rehearsal,
    ways: {
      shellOf: (connectionId) => (connectionId === undefined ? localShell : links.shell(connectionId)),
      clusterOf: (connectionId) => clusters.cluster(connectionId),
      slurmrestd: { http, tokenOf: (reference) => slurmToken(vault, reference) },
      functions: {
        root: functionFolder(config),
        invoke: functions.invoke,
        links: callLinks,
        credentialOf: (reference) => functionCredential(vault, reference),
      },
    },
    localShell,
    reachOf: (connectionId) => reachOf(db, connectionId),
    hostId: config.hostId,
    workRoot: workFolder(config),
    cores: openHostCores(availableParallelism()),
    taskVariable,
  })
  const reader = openReader({ databaseUrl: endpoints.databaseUrl, readerUrl: config.provenanceDatabaseUrl })
  return {
    db,
    vaultKeys,
    reader,
    engine,
    /** Encrypts what Temporal keeps; undefined without a vault. */
    payloads: vaultKeys && payloadCodec(vaultKeys),
    compute,
    vault,
    links,
    sites,
    /** What functions call back; none without a key to sign their links with. */
    functionCalls:
      callLinks === undefined
        ? undefined
        : openFunctionCalls({ root: functionFolder(config), links: callLinks, clock: () => Date.now() / 1_000 }),
    wakes: openWakes(),
    addressAllowed,
    api,
    allowProxyCommand: config.allowProxyCommand,
    engineSockets,
    buildkitSocket: config.buildkitSocket,
    discoveryWaitSeconds: config.discoveryWaitSeconds,
    monitorIntervalSeconds: config.monitorIntervalSeconds,
    sitePatienceSeconds: config.sitePatienceSeconds,
    hostId: config.hostId,
    kubernetesHelperImage: config.kubernetesHelperImage,
    workRoot: workFolder(config),
    seedRoot: config.seedRoot,
    variablePrefix: config.taskVariablePrefix,
    currency: config.currency,
    clock: openClock(),
    failpoint: openFailpoints(config.failpoints),
    async [Symbol.asyncDispose]() {
      await sites.close()
      await clusters.close()
      functions.close()
      http.close()
      await local.close()
      await rehearsal.close()
      await sessions.close()
      await localShell.close()
      await compute[Symbol.asyncDispose]()
      await engine[Symbol.asyncDispose]()
      await reader[Symbol.asyncDispose]()
      await db[Symbol.asyncDispose]()
    },
  }
}

export type Parts = Awaited<ReturnType<typeof openParts>>
