import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { openClock } from './clock.ts'
import { passwordsOf, reachedHere, StartError, type Config } from './config.ts'
import { imageDigest, type EngineSockets } from './clients/docker.ts'
import { addressJudge } from './clients/denied-networks.ts'
import { openFunctions } from './clients/functions.ts'
import { openHttp, type AddressJudge } from './clients/http.ts'
import { openRelay } from './clients/ssh/relay.ts'
import { openSshSessions } from './clients/ssh/sessions.ts'
import { openCompute } from './compute/compute.ts'
import { openClusters } from './connections/clusters.ts'
import { openLinks } from './connections/links.ts'
import { loginRecords } from './connections/login-holders.ts'
import { reachOf } from './connections/reach.ts'
import { functionCredential, slurmToken } from './connections/runtime-credentials.ts'
import { migrate } from './db/migrate.ts'
import { provenanceOf } from './db/archive-names.ts'
import { ownRecords } from './db/own-records.ts'
import { openDatabase } from './db/pool.ts'
import { openReader, type Reader } from './db/reader.ts'
import { openSelected, type Selected } from './db/selected.ts'
import type { Db } from './db/sql.ts'
import { unusableDatabase } from './db/unusable.ts'
import { signRecord } from './domains/audit-events/seal.ts'
import { headKey, recordAudit } from './domains/audit-events/store.ts'
import { openWitness } from './domains/audit-events/witness.ts'
import { openClouds } from './domains/cloud/clouds.ts'
import { openPlays } from './domains/cloud/plays.ts'
import { openMachineShells } from './domains/cloud/ssh-target.ts'
import { configurationSecrets } from './domains/environments/store.ts'
import { openFunctionCalls } from './domains/function-calls/store.ts'
import { selectedArtifacts } from './domains/instance/archives/files.ts'
import { openSelection } from './domains/instance/archives/selection.ts'
import { deactivate } from './domains/instance/archives/store.ts'
import { transferBuffer } from './domains/instance/schemas.ts'
import { readSystemInstance } from './domains/instance/store.ts'
import { openStorages } from './domains/storages/open.ts'
import { openArtifactStore, storeFolders } from './drivers/build/store.ts'
import { withContainers } from './drivers/runtime/container/driver.ts'
import { openLocalDriver } from './drivers/runtime/local/driver.ts'
import { openNoneDriver } from './drivers/runtime/none/driver.ts'
import { openCallLinks } from './drivers/runtime/serverless/links.ts'
import type { Endpoints } from './embedded/embedded.ts'
import { witnessFile } from './embedded/folders.ts'
import { openHolderPrograms } from './embedded/holder-program.ts'
import { openSbomProgram } from './embedded/sbom-program.ts'
import { openRunnerProgram } from './embedded/runner-program.ts'
import { openEngine } from './engine.ts'
import { openFeed } from './operations/feed.ts'
import { openSiteDrivers } from './executor/drivers.ts'
import { openHostCores } from './executor/host-cores.ts'
import { openRunWakeUps } from './executor/wake-ups.ts'
import { openFailpoints } from './failpoints.ts'
import { readGauges } from './gauges.ts'
import { openReports, type Reports } from './observability/reports.ts'
import type { Surroundings } from './programs/program.ts'
import { openLocalShell } from './shell/local-shell.ts'
import { dataConverter } from './vault/data-converter.ts'
import { openServiceKeys, type VaultKeys } from './vault/keys.ts'
import { payloadCodec } from './vault/payload-codec.ts'
import { keyUse, openVault } from './vault/vault.ts'
import { readCodecKey } from './temporal-codec.ts'

/** Folder of work directories below the data folder, and of the local driver's own files. */
const workFolder = (config: Config): string => join(config.dataDir, 'work')
const taskFolder = (config: Config): string => join(config.dataDir, 'tasks')
/** The work directories and records of function calls. */
const functionFolder = (config: Config): string => join(config.dataDir, 'functions')

type Opening = Pick<Surroundings, 'config' | 'log'> & {
  /** The stack of opened parts. It closes them in reverse order. */
  opened: AsyncDisposableStack
}

/**
 * A lost key file is not replaced by a new one: what the lost key sealed could no longer be opened
 * once the file is put back, and what it signed could not be proved. @throws StartError where
 * credentials are sealed, or audit records are, and the file of an embedded installation is missing
 */
const assertKeyFile = async ({ vaultKeyFile, databaseUrl, dataDir }: Config, db: Db): Promise<void> => {
  const file = join(dataDir, 'vault.key')
  if (vaultKeyFile !== undefined || databaseUrl !== undefined || existsSync(file)) return
  const [sealed] = (await keyUse(db)).keys()
  const key = sealed ?? (await headKey(db))
  if (key === undefined) return
  const what = sealed === undefined ? 'audit records are sealed with' : 'credentials are sealed under'
  const make = `make a key (umask 077; openssl rand -base64 32 > ${file})`
  throw new StartError(
    `the key file ${file} is missing, and ${what} key ${key}: put its copy back. Where there is none, ` +
      (sealed === undefined ? make : `${make} and store the credentials again`) +
      '; audit records until then cannot be proved, and open workflows cannot go on',
  )
}

/** The records, and the keys that sign them and encrypt secrets. */
const openRecords = async ({ config, log, opened, endpoints }: Opening & { endpoints: Endpoints }) => {
  const signing: { keys?: VaultKeys | undefined } = {}
  const ownDb = opened.use(
    openDatabase(endpoints.databaseUrl, {
      max: 20,
      sign: (text) => signRecord(signing.keys, text),
      settings: { 'orrery.local_storage': config.localStorageRoot === undefined ? 'none' : 'approved' },
      onError: (error) => {
        const { code, message } = error as NodeJS.ErrnoException
        log.warn({ code, reason: message }, 'a database connection was lost; the next query opens another')
      },
    }),
  )
  try {
    for (const { id, error } of (await migrate(ownDb)).old) {
      await deactivate(ownDb, id)
      log.warn(
        { err: error, instanceId: id },
        'an archived instance could not be brought to this version; it is not active, and none can read it: ' +
          'delete it and import it again',
      )
    }
  } catch (error) {
    throw unusableDatabase(endpoints.databaseUrl, config.databaseUrl !== undefined, error)
  }
  const selected = openSelected(ownDb)
  const { db } = selected
  // The folder is passable, like the data folder. The driver creates the folder of a task with
  // 0700.
  await mkdir(workFolder(config), { recursive: true, mode: 0o711 })
  await mkdir(taskFolder(config), { recursive: true, mode: 0o700 })
  await assertKeyFile(config, ownDb)
  const vaultKeys = await openServiceKeys(config)
  signing.keys = vaultKeys
  const vault = openVault({
    db,
    keys: vaultKeys,
    outside: { variables: config.credentialVariables, folders: config.credentialFolders },
    audit: (event) => recordAudit(db, event),
  })
  for (const [key, credentials] of await vault.lost())
    log.warn({ key, credentials }, 'the key file lacks a key: the credentials under it cannot be opened')
  const sealer = await headKey(ownDb)
  if (sealer !== undefined && (await vaultKeys?.find(sealer)) === undefined)
    log.warn(
      { key: sealer },
      'the key that sealed the newest audit record is missing: put it into the key file, or the records ' +
        'until now cannot be proved',
    )
  return { db, ownDb, selected, vaultKeys, vault }
}

/** The driver of tasks on this machine, and the driver that starts no task. */
const openThisMachine = ({ config, log, opened }: Opening) => {
  const runnerProgram = openRunnerProgram({
    cacheDir: config.cacheDir,
    environment: config.childEnvironment,
    log,
    onProgress: (message) => {
      log.debug(message)
    },
  })
  const holderPrograms = openHolderPrograms({
    cacheDir: config.cacheDir,
    environment: config.childEnvironment,
    log,
    onProgress: (message) => {
      log.debug(message)
    },
  })
  // The search starts at once, so that the first task does not wait for it.
  runnerProgram().catch((error: unknown) => {
    log.warn({ err: error }, 'no task can be started on this machine yet')
  })
  const taskVariable = `${config.taskVariablePrefix}TASK`
  const engineSockets: EngineSockets = { docker: config.dockerSocket, podman: config.podmanSocket }
  const localShell = opened.adopt(openLocalShell(), (shell) => shell.close())
  const processes = openLocalDriver({ controlDirectory: taskFolder(config), taskVariable, runnerProgram })
  const containers = withContainers(processes, {
    shell: localShell,
    root: () => Promise.resolve(config.dataDir),
    taskVariable,
    engine: 'auto',
    endsDescendants: true,
    imageDigest: ({ engine, socket = engineSockets[engine], id, name }) => imageDigest(socket, id, name),
  })
  return {
    taskVariable,
    engineSockets,
    holderPrograms,
    localShell,
    local: opened.adopt(containers, (driver) => driver.close()),
    rehearsal: opened.adopt(openNoneDriver(), (driver) => driver.close()),
  }
}

/** The reader of this installation, and one for each archive that a request reads. */
const openReaders = (selected: Selected, options: Parameters<typeof openReader>[0]): Reader => {
  const readers = new Map<string | undefined, Reader>()
  const now = (): Reader => {
    const schema = selected.archive()
    const known = readers.get(schema)
    if (known !== undefined) return known
    const made = openReader({ ...options, ...(schema === undefined ? {} : { schema: provenanceOf(schema) }) })
    readers.set(schema, made)
    return made
  }
  return {
    rows: (statement, how) => now().rows(statement, how),
    copy: (statement, how) => now().copy(statement, how),
    explain: (statement, deadlineMs) => now().explain(statement, deadlineMs),
    async [Symbol.asyncDispose]() {
      await Promise.all([...readers.values()].map((each) => each[Symbol.asyncDispose]()))
    },
  }
}

type Records = Awaited<ReturnType<typeof openRecords>>
type ThisMachine = ReturnType<typeof openThisMachine>

/** Logins and clusters of stored connections. */
const openConnections = (
  { config, log, opened }: Opening,
  { db, vaultKeys, vault }: Records,
  { localShell, addressAllowed }: Pick<ThisMachine, 'localShell'> & { addressAllowed: AddressJudge },
) => {
  const relay = vaultKeys && {
    keys: vaultKeys,
    records: loginRecords(db),
    address: config.relayAddress,
    warn: (error: unknown, message: string) => {
      log.warn({ err: error }, message)
    },
  }
  const { allowProxyCommand, sshTrustOnFirstUse: trustOnFirstUse } = config
  const others = relay && { others: (held: Parameters<typeof openRelay>[1]) => openRelay(relay, held) }
  const sessions = opened.adopt(openSshSessions({ addressAllowed, allowProxyCommand, ...others }), (each) =>
    each.close(),
  )
  const links = openLinks({ db, secrets: vault, sessions, localShell, allowProxyCommand, trustOnFirstUse })
  const clusters = opened.adopt(openClusters({ db, links, addressAllowed }), (each) => each.close())
  return { links, clusters, sessions }
}

/**
 * The drivers of all sites, and the routes that functions call. These routes exist only with a key
 * to sign their links.
 */
const openSites = (
  { config, opened }: Opening,
  { db, vaultKeys, vault }: Records,
  { localShell, local, rehearsal, taskVariable }: ThisMachine,
  {
    links,
    clusters,
    sessions,
    addressAllowed,
  }: ReturnType<typeof openConnections> & { addressAllowed: AddressJudge },
) => {
  const http = opened.adopt(openHttp({ addressAllowed }), (client) => client.close())
  const functions = opened.adopt(openFunctions({ addressAllowed }), (client) => client.close())
  const root = functionFolder(config)
  const callLinks = vaultKeys && openCallLinks(vaultKeys)
  const drivers = openSiteDrivers({
    local,
    rehearsal,
    ways: {
      shellOf: (connectionId) => (connectionId === undefined ? localShell : links.shell(connectionId)),
      machineShell: openMachineShells({ db, vault, sessions }),
      clusterOf: (connectionId) => clusters.cluster(connectionId),
      slurmrestd: { http, tokenOf: (reference) => slurmToken(vault, reference) },
      functions: {
        root,
        invoke: functions.invoke,
        links: callLinks,
        credentialOf: (reference) => functionCredential(vault, reference),
      },
    },
    localShell,
    reachOf: (connectionId) => ownRecords(reachOf(db, connectionId)),
    hostId: config.hostId,
    workRoot: workFolder(config),
    cores: openHostCores(availableParallelism()),
    taskVariable,
  })
  return {
    sites: opened.adopt(drivers, (each) => each.close()),
    functionCalls:
      callLinks && openFunctionCalls({ root, links: callLinks, clock: () => Date.now() / 1_000 }),
  }
}

/**
 * Drivers of the environments' storages, with a client of their own: a slow store holds its own
 * connections only.
 */
const openStorageDrivers = (
  { config, opened }: Opening,
  { db, vault }: Records,
  {
    links,
    clusters,
    addressAllowed,
    reports,
  }: ReturnType<typeof openConnections> & { addressAllowed: AddressJudge; reports: Reports },
) => {
  const http = opened.adopt(openHttp({ addressAllowed }), (client) => client.close())
  const shellOf = (connectionId: string) => links.shell(connectionId, 'read and write a storage')
  const storages = openStorages({
    db,
    http,
    secrets: vault,
    shellOf,
    filesOf: (connectionId) => links.files(connectionId, 'read and write a storage'),
    clusterOf: (connectionId) => clusters.cluster(connectionId),
    helperImage: config.kubernetesHelperImage,
    localStorageRoot: config.localStorageRoot,
    partBytes: async () => (await readSystemInstance(db))?.transferBufferBytes ?? transferBuffer.usual,
    onCall: reports.storageCall,
  })
  return opened.adopt(storages, (each) => each.close())
}

/** Drivers of cloud providers, with a client of their own. */
const openCloudDrivers = ({ opened }: Opening, { db, vault }: Records, addressAllowed: AddressJudge) => {
  const http = opened.adopt(openHttp({ addressAllowed }), (client) => client.close())
  return openClouds({ db, http, secrets: vault })
}

/**
 * Opens the parts that both programs share, and migrates the database to the newest schema. The
 * parts close in reverse order; tasks that run on this machine go on. A failure closes the parts
 * that were opened before it.
 */
export const openParts = async ({
  config,
  log,
  metrics,
  traces,
  endpoints,
}: Pick<Surroundings, 'config' | 'log' | 'metrics' | 'traces'> & { endpoints: Endpoints }) => {
  await using opened = new AsyncDisposableStack()
  const opening = { config, log, opened }
  const records = await openRecords({ ...opening, endpoints })
  const { db, ownDb, selected, vaultKeys, vault } = records
  metrics.watchRecord(() => readGauges(db))
  metrics.measures.watchPool(() => db.pool())
  /** Base URL of the API for clients on this machine; port 0 becomes the one that it listens on. */
  const api = {
    url: `http://${reachedHere(config.listenAddress)}${config.apiPrefix}`,
    tokenNeeded: config.apiToken !== undefined,
  }
  const reader = opened.use(
    openReaders(selected, { databaseUrl: endpoints.databaseUrl, readerUrl: config.provenanceDatabaseUrl }),
  )
  const ownEngine = opened.use(
    openEngine({
      address: endpoints.temporalAddress,
      namespace: config.temporalNamespace,
      taskQueue: config.temporalTaskQueue,
      plugins: traces.temporalPlugins,
      dataConverter: dataConverter(vaultKeys),
      apiUrl: () => api.url,
    }),
  )
  // Records of an archive have no workflow here, even where a record of this installation has the
  // same id.
  const engine: typeof ownEngine = {
    ...ownEngine,
    live: (...of) => (selected.archive() === undefined ? ownEngine.live(...of) : Promise.resolve(undefined)),
  }
  const selection = opened.use(openSelection({ db: ownDb, selected }))
  const compute = opened.use(openCompute({ threads: Math.max(1, availableParallelism() - 1) }))
  const addressAllowed = addressJudge({
    denied: config.deniedNetworks,
    allowLoopback: config.allowLoopbackConnections,
  })
  const reports = openReports(log, metrics.measures)
  const machine = openThisMachine(opening)
  const connections = openConnections(opening, records, { ...machine, addressAllowed })
  const { sites, functionCalls } = openSites(opening, records, machine, { ...connections, addressAllowed })
  const clouds = openCloudDrivers(opening, records, addressAllowed)
  const instanceSpool = join(config.dataDir, 'instances')
  const artifactRoot = config.artifactRoot ?? join(config.dataDir, 'artifacts')
  const ownArtifactStore = openArtifactStore(artifactRoot)
  const parts = {
    db,
    ownDb,
    selection,
    instanceSpool,
    /** What a factory reset removes in these folders. */
    files: [
      { root: config.dataDir, folders: ['work', 'tasks', 'functions'] },
      { root: artifactRoot, folders: storeFolders },
    ],
    // Also while an archive is read, whose schema holds no credentials.
    instanceSecrets: () =>
      selected.outside(async () => [
        ...(await vault.values(8)),
        ...(await configurationSecrets(ownDb)),
        ...config.credentialVariables.values(),
        ...[config.apiToken ?? '', ...passwordsOf(endpoints.databaseUrl)],
        ...(config.provenanceDatabaseUrl === undefined ? [] : passwordsOf(config.provenanceDatabaseUrl)),
        config.temporalCodecKey ?? (await readCodecKey(config.dataDir)) ?? '',
      ]),
    vaultKeys,
    auditWitness: openWitness(witnessFile(config.dataDir)),
    reader,
    engine,
    /** Encrypts the payloads that Temporal stores; undefined without a vault. */
    payloads: vaultKeys && payloadCodec(vaultKeys),
    compute,
    vault,
    links: connections.links,
    clouds,
    plays: openPlays({ addressAllowed }),
    identifyCloud: (...of: Parameters<typeof clouds.identify>) => clouds.identify(...of),
    cloudIdentity: (connection: Parameters<typeof clouds.identity>[0]) => clouds.identity(connection),
    sshSessions: connections.sessions,
    cloudSshSourceRanges: config.cloudSshSourceRanges,
    cloudSweepSeconds: config.cloudSweepSeconds,
    storages: openStorageDrivers(opening, records, { ...connections, addressAllowed, reports }),
    sites,
    functionCalls,
    wakeUps: openRunWakeUps(),
    // Streams that begin while an archive is read must not make it read that archive's events.
    feed: opened.use(openFeed({ db: ownDb, log })),
    reports,
    addressAllowed,
    api,
    consoleEnabled: config.consoleEnabled,
    consoleSessions: config.consoleSessions,
    holderPrograms: machine.holderPrograms,
    allowProxyCommand: config.allowProxyCommand,
    engineSockets: machine.engineSockets,
    buildkitSocket: config.buildkitSocket,
    /** For executables and registries. */
    http: opened.adopt(openHttp({ addressAllowed }), (client) => client.close()),
    buildEngine: config.containerEngine ?? config.dockerSocket,
    ownArtifactStore,
    artifactStore: selectedArtifacts(ownArtifactStore, () => selected.archive(), instanceSpool),
    buildContextLimitBytes: config.buildContextLimitBytes,
    buildConcurrency: config.buildConcurrency,
    sbomProgram: openSbomProgram({
      mode: config.sbom,
      cacheDir: config.cacheDir,
      environment: config.childEnvironment,
      log,
      onProgress: (message) => {
        log.info(message)
      },
    }),
    discoveryWaitSeconds: config.discoveryWaitSeconds,
    monitorIntervalSeconds: config.monitorIntervalSeconds,
    sitePatienceSeconds: config.sitePatienceSeconds,
    hostId: config.hostId,
    kubernetesHelperImage: config.kubernetesHelperImage,
    workRoot: workFolder(config),
    seedRoot: config.seedRoot,
    localStorageRoot: config.localStorageRoot,
    variablePrefix: config.taskVariablePrefix,
    currency: config.currency,
    clock: openClock(),
    failpoint: openFailpoints(config.failpoints),
  }
  const closing = opened.move()
  return { ...parts, [Symbol.asyncDispose]: () => closing.disposeAsync() }
}

export type Parts = Awaited<ReturnType<typeof openParts>>
