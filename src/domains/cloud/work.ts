import { z } from 'zod'
import type { SshSessions, SshTarget } from '../../clients/ssh/target.ts'
import { sql, type Db } from '../../db/sql.ts'
import { CloudError, type Machine, type MachineWish } from '../../drivers/cloud/contract.ts'
import { appendEvent } from '../../operations/events.ts'
import type { OperationRef } from '../../operations/kind.ts'
import { poll } from '../../pacing/poll.ts'
import { Refusal, existing } from '../../refusal.ts'
import type { SecretOpener } from '../../vault/secret.ts'
import { dropCredential } from '../credentials/store.ts'
import { configurationOf, sourceRanges } from './accept.ts'
import { billingBegins, billingEnds, computeBegins, computeEnds } from './billing.ts'
import type { Cloud, Clouds } from './clouds.ts'
import { keyIdOf } from './instance-keys.ts'
import { lossOf, type WatchedInstance } from './loss.ts'
import { cloudKind } from './operation.ts'
import type { Plays } from './plays.ts'
import type { CapacityTarget } from './schemas.ts'
import { loginColumns, LoginRow, sshTargetOf } from './ssh-target.ts'
import { readTarget } from './store.ts'
import { whileThere } from './while-there.ts'

export interface CloudWorkParts {
  db: Db
  clouds: Clouds
  sshSessions: SshSessions
  vault: SecretOpener
  cloudSshSourceRanges: readonly string[]
  plays: Plays
  failpoint: (name: string) => void
}

const JobRow = LoginRow.extend({
  operationId: z.string(),
  generation: z.number(),
  kind: z.string(),
  id: z.string(),
  name: z.string(),
  status: z.string(),
  reference: z.string(),
  connectionId: z.string(),
  provider: z.string(),
  targetId: z.string(),
  region: z.string(),
  projectId: z.string().nullish(),
  account: z.string().nullish(),
  askedAt: z.string().nullish(),
  providerId: z.string().nullish(),
  sshPublicKey: z.string().nullish(),
  readyAt: z.string().nullish(),
  configuringAt: z.string().nullish(),
  cancelRequestedAt: z.string().nullish(),
})
/** An operation and its instance. */
export type CloudJob = z.output<typeof JobRow>

/** @throws Refusal `missing` */
export const readJob = async (db: Db, operationId: string): Promise<CloudJob> =>
  existing(
    await db.maybe(
      JobRow,
      sql`select o.id as operation_id, o.generation, o.kind, i.id, i.name, i.status, i.reference::text as reference,
        i.connection_id, i.provider, i.capacity_target_id as target_id, i.region, i.project_id, i.account,
        i.asked_at, i.provider_id,
        ${loginColumns}, i.ssh_public_key, i.ready_at, i.configuring_at, o.cancel_requested_at
      from cloud_operations o join cloud_instances i on i.id = o.instance_id
        join cloud_capacity_targets t on t.id = i.capacity_target_id where o.id = ${operationId}`,
    ),
    'cloud operation',
    operationId,
  )

const ServiceRow = z.object({ reference: z.string() })
/** The tag value that marks the machines of this service. */
export const serviceReference = async (db: Db): Promise<string> =>
  (await db.one(ServiceRow, sql`select reference::text as reference from cloud_service`)).reference

const refOf = ({ operationId: id, generation }: CloudJob): OperationRef => ({ id, generation })

/** Records a step: its phase, and an event. */
export const note = (
  db: Db,
  job: CloudJob,
  phase: string,
  event: string,
  facts: Record<string, unknown> = {},
): Promise<void> =>
  db.transaction(async (tx) => {
    await tx.run(sql`update cloud_operations set phase = ${phase} where id = ${job.operationId}
      and status in ('queued', 'running')`)
    await appendEvent(tx, cloudKind, refOf(job), `cloud.${event}`, { phase, level: 'info', ...facts })
  })

const cloudOf = ({ clouds }: CloudWorkParts, job: CloudJob): Promise<Cloud> => clouds.at(job)

// ---------------------------------------------------------------------------------------------------------
// make

const zonesOf = async (cloud: Cloud, target: CapacityTarget): Promise<(string | undefined)[]> => {
  if (target.fixedZone !== undefined) return [target.fixedZone]
  if (target.zonePolicy !== 'any-compatible') return [undefined]
  // The subnet names the zone.
  if (cloud.driver.zonalSubnets && configurationOf(target).network !== undefined) return [undefined]
  return [undefined, ...(await cloud.driver.zonesOf(target.providerMachineType))]
}

const wishOf = async (parts: CloudWorkParts, job: CloudJob, target: CapacityTarget): Promise<MachineWish> => {
  const { diskSizeGiB, diskType, network, sshPort = 22 } = configurationOf(target)
  return {
    ...{ reference: job.reference, service: await serviceReference(parts.db), instanceId: job.id },
    ...{ name: job.name, machineType: target.providerMachineType, image: target.imageReference },
    ...{ spot: target.provisioningMode === 'spot', diskGiB: diskSizeGiB, diskType, subnet: network },
    ...{ sshPort, sshSourceRanges: sourceRanges(target, parts.cloudSshSourceRanges) },
    // The comment of the key holds the instance's id. No text of a user becomes part of what boots a machine.
    login: { username: job.sshUsername, publicKey: (job.sshPublicKey ?? '').split(' ', 2).join(' ') },
  }
}

/** Asks each zone until one has capacity. @throws CloudError */
const createSomewhere = async (
  parts: CloudWorkParts,
  job: CloudJob,
  cloud: Cloud,
  target: CapacityTarget,
): Promise<Machine> => {
  const wish = await wishOf(parts, job, target)
  let last: unknown
  const refused = async (error: unknown, zone: string | undefined): Promise<void> => {
    if (!(error instanceof CloudError) || error.fault !== 'capacity') throw error
    last = error
    const message = `${zone ?? 'the zone that the provider chose'} has no capacity: ${error.message}`
    await note(parts.db, job, 'provisioning', 'resource.refused', { tool: target.provider, message })
  }
  let zones: (string | undefined)[] = [target.fixedZone]
  for (let place = 0; place < zones.length; place++) {
    const zone = zones[place]
    try {
      return await cloud.driver.create({ ...wish, zone })
    } catch (error) {
      await refused(error, zone)
      if (place === 0) zones = await zonesOf(cloud, target)
    }
  }
  throw last
}

/**
 * The intent and the account are recorded before the request to the provider.
 * @throws Error where the instance ended meanwhile: a late attempt makes no machine
 */
const recordAsking = (db: Db, job: CloudJob, target: CapacityTarget, account: string): Promise<void> =>
  db.transaction(async (tx) => {
    const recorded = await tx.run(sql`update cloud_instances set asked_at = now(), account = ${account}
      where id = ${job.id} and reference = ${job.reference} and not machine_gone`)
    if (recorded === 0) throw new Error(`the instance ${job.id} is over, so no machine is made for it`)
    await note(tx, job, 'provisioning', 'resource.creating', {
      tool: target.provider,
      message: `${target.providerMachineType} from ${target.imageReference} in ${job.region}`,
    })
  })

/**
 * Starts a machine that is stopped; no effect on one that starts or runs. @throws CloudError, `away`
 * while its provider stops it
 */
const startStopped = async (cloud: Cloud, id: string): Promise<void> => {
  const state = (await cloud.look(id))?.state
  // A provider refuses the start of such a machine for good.
  if (state === 'stopping')
    throw new CloudError('away', `the machine ${id} cannot be started while its provider stops it`)
  if (state === 'stopped') await cloud.driver.start(id)
}

/** Makes the machine of an instance, once; a stopped one is started. */
export const createMachine = async (parts: CloudWorkParts, operationId: string): Promise<void> => {
  const { db } = parts
  const job = await readJob(db, operationId)
  const cloud = await cloudOf(parts, job)
  const target = existing(await readTarget(db, job.targetId), 'capacity target', job.targetId)
  if (job.providerId != null) return startStopped(cloud, job.providerId)
  // What was never asked for is not there.
  const [found] = job.askedAt == null ? [] : await cloud.driver.find(job.reference)
  // An operation that is cancelled while the provider does not answer has asked for nothing.
  if (job.askedAt == null) await recordAsking(db, job, target, await cloud.account())
  parts.failpoint('cloud-before-create')
  const machine = found ?? (await createSomewhere(parts, job, cloud, target))
  // Until this is recorded, the machine is found by its reference.
  parts.failpoint('cloud-created')
  await db.transaction(async (tx) => {
    const recorded = await tx.run(
      sql`update cloud_instances set provider_id = ${machine.id}, zone = ${machine.zone ?? null},
          ${billingBegins} where id = ${job.id} and provider_id is null`,
    )
    if (recorded > 0)
      await note(tx, job, 'provisioning', 'resource.created', {
        ...{ tool: target.provider, message: machine.id },
      })
  })
}

// ---------------------------------------------------------------------------------------------------------
// wait

/** Below the 15 minutes of one try of an activity, whose end would tell nothing. */
const longestWaitMs = 840_000

interface Wait {
  everyMs: number
  signal: AbortSignal
  deadlineMs?: number
  /** What is still missing at the deadline. */
  lack: () => string
}

/**
 * Asks until there is an answer. @throws CloudError `away` with the lack at the deadline; the
 * signal's reason at its abort
 */
const untilAnswered = async <T>(
  ask: () => Promise<T | undefined>,
  { everyMs, signal, deadlineMs = longestWaitMs, lack }: Wait,
): Promise<T> => {
  const answer = await poll(ask, { everyMs, signal, deadlineMs })
  if (answer !== undefined) return answer
  signal.throwIfAborted()
  throw new CloudError('away', lack())
}

/** A provider may not list a new machine, or show the start of a stopped one, for this long. */
const unseenMs = 120_000

/** A provider may show the public address of a running machine this many looks late. */
const mostLooks = 5

/** Whether a machine that runs may show a public address at a later look. */
const isEarly = (machine: Machine, wanted: 'public' | 'private' | undefined, looks: number): boolean =>
  wanted !== 'private' && machine.publicAddress === undefined && looks < mostLooks

/** Records that a machine runs, and where. It costs money from now on, whatever becomes of it. */
const recordRunning = async (db: Db, job: CloudJob, machine: Machine): Promise<void> => {
  await db.run(sql`update cloud_instances set public_address = ${machine.publicAddress ?? null},
      private_address = ${machine.privateAddress ?? null}, zone = ${machine.zone ?? null}, ${computeBegins}
    where id = ${job.id}`)
}

/** Why the service cannot log in at a machine that runs; undefined where it has an address for that. */
const lacksAddress = (
  { id, ...machine }: Machine,
  wanted: 'public' | 'private' | undefined,
): string | undefined => {
  const address =
    wanted === undefined ? (machine.publicAddress ?? machine.privateAddress) : machine[`${wanted}Address`]
  if (address !== undefined) return undefined
  const other = wanted === 'public' ? 'private' : 'public'
  return (
    `the machine ${id} runs without ${wanted === undefined ? 'an' : `a ${wanted}`} address; name a subnet in ` +
    `configuration.network of the target that gives one${wanted === undefined ? '' : `, or let sshAddress be ${other}`}`
  )
}

/**
 * Why a machine that was asked to run will not; undefined where it may run yet. `begins`: the
 * provider has shown that it starts; `isLate`: the provider has had the time to show this.
 */
const startLoss = (
  id: string,
  machine: Machine | undefined,
  { begins, isLate }: { begins: boolean; isLate: boolean },
): string | undefined => {
  const other = 'provision another instance'
  if (machine === undefined)
    return isLate ? `the provider shows the machine ${id} no more; ${other}` : undefined
  const loss = lossOf(machine)
  if (loss?.stays === false) return `${loss.reason}; ${other}`
  return loss !== undefined && machine.state === 'stopped' && (begins || isLate)
    ? `${loss.reason} instead of running; retry the operation, or ${other}`
    : undefined
}

/**
 * Waits until a machine runs and has the address that its target wants. @throws CloudError where
 * the machine was ended or stopped meanwhile, or runs without that address
 */
export const awaitRunning = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
): Promise<void> => {
  const job = await readJob(parts.db, operationId)
  const cloud = await cloudOf(parts, job)
  const { sshAddress } = configurationOf(await readTarget(parts.db, job.targetId))
  const since = Date.now()
  let looks = 0
  let begins = false
  let machine: Machine | undefined
  const isRunning = async (): Promise<true | undefined> => {
    machine = await cloud.look(job.providerId ?? '')
    if (machine?.state === 'running') {
      looks += 1
      if (isEarly(machine, sshAddress, looks)) return undefined
      await recordRunning(parts.db, job, machine)
      const lack = lacksAddress(machine, sshAddress)
      if (lack !== undefined) throw new CloudError('refused', lack)
      return true
    }
    begins ||= machine?.state === 'pending'
    const loss = startLoss(job.providerId ?? '', machine, { begins, isLate: Date.now() - since > unseenMs })
    if (loss !== undefined) throw new CloudError('refused', loss)
    return undefined
  }
  const lack = () =>
    `the machine ${job.providerId ?? ''} does not run yet; its provider shows it as ${machine?.state ?? 'unknown'}`
  await untilAnswered(isRunning, { everyMs: 500, signal, lack })
}

/** Waits until a machine is stopped, or gone. */
const awaitStopped = async (job: CloudJob, cloud: Cloud, signal: AbortSignal): Promise<void> => {
  let machine: Machine | undefined
  const isThere = async (): Promise<true | undefined> => {
    machine = job.providerId == null ? undefined : await cloud.look(job.providerId)
    return machine === undefined || machine.state === 'gone' || machine.state === 'stopped' ? true : undefined
  }
  const lack = () =>
    `the machine ${job.providerId ?? ''} is still ${machine?.state ?? 'there'} at its provider`
  await untilAnswered(isThere, { everyMs: 500, signal, lack })
}

// ---------------------------------------------------------------------------------------------------------
// ssh

/** The login of an instance. */
export const targetOf = ({ vault }: CloudWorkParts, job: CloudJob): SshTarget => sshTargetOf(vault, job)

/**
 * The host key that a machine prints at its first start, in the format of cloud-init; undefined
 * before.
 */
export const printedHostKey = (console: string): string | undefined => {
  const [, block] =
    /-----BEGIN SSH HOST KEY KEYS-----([\s\S]*?)-----END SSH HOST KEY KEYS-----/.exec(console) ?? []
  const keys = (block ?? '').split(/\r?\n/).flatMap((line) => {
    const [, type, key] =
      /(ssh-ed25519|ecdsa-sha2-nistp256|ssh-rsa) ([A-Za-z0-9+/=]{40,2000})/.exec(line) ?? []
    return type === undefined || key === undefined ? [] : [{ type, line: `${type} ${key}` }]
  })
  return (keys.find(({ type }) => type === 'ssh-ed25519') ?? keys[0])?.line
}

const pinHostKey = async (parts: CloudWorkParts, job: CloudJob, signal: AbortSignal): Promise<CloudJob> => {
  if (job.hostKey != null) return job
  const cloud = await cloudOf(parts, job)
  const printed = async () => printedHostKey(await cloud.driver.console(job.providerId ?? ''))
  const lack = () =>
    `the console of the machine ${job.providerId ?? ''} shows no host key; name an image with cloud-init, or at ` +
    "Google with Google's agent, in imageReference of the target"
  const hostKey = await untilAnswered(printed, {
    ...{ everyMs: 2_000, signal, deadlineMs: longestWaitMs / 2, lack },
  })
  await parts.db.run(sql`update cloud_instances set host_key = ${hostKey} where id = ${job.id}`)
  return { ...job, hostKey }
}

/** The machine of an instance, as its provider is asked about it. */
export const watchedOf = (job: CloudJob): WatchedInstance => ({ ...job, providerId: job.providerId ?? '' })

/** @throws CloudError where the machine shows another key than the pinned one */
const awaitLogin = async (parts: CloudWorkParts, job: CloudJob, signal: AbortSignal): Promise<void> => {
  let last = ''
  const isHealthy = async (): Promise<true | undefined> => {
    const probe = await parts.sshSessions.probe(targetOf(parts, job), { fresh: true })
    if (probe.healthy) return true
    last = probe.message
    if (probe.stages.at(-1)?.stage === 'host key')
      throw new CloudError('refused', `the machine shows another host key than its console: ${probe.message}`)
    return undefined
  }
  const lack = () =>
    `the machine ${job.providerId ?? ''} takes no login of ${job.sshUsername} at ${job.address ?? ''}: ${last}; ` +
    'check sshSourceRanges, sshPort and sshAddress of its target'
  await untilAnswered(isHealthy, { everyMs: 1_000, signal, deadlineMs: longestWaitMs / 2, lack })
}

/**
 * Waits until the machine shows the pinned host key and accepts the login of the service.
 * @throws CloudError where it shows another key, or its provider ends it meanwhile
 */
export const awaitSsh = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
): Promise<void> => {
  const begun = performance.now()
  const found = await readJob(parts.db, operationId)
  await note(parts.db, found, 'waiting-for-ssh', 'ssh.waiting', { message: found.address ?? '' })
  const job = await whileThere(parts.clouds, watchedOf(found), signal, async (stop) => {
    const pinned = await pinHostKey(parts, found, stop)
    await awaitLogin(parts, pinned, stop)
    return pinned
  })
  await note(parts.db, job, 'waiting-for-ssh', 'ssh.ready', {
    durationSeconds: Math.round((performance.now() - begun) / 10) / 100,
  })
}

// ---------------------------------------------------------------------------------------------------------
// ends

/** Records that the machine takes work. */
export const markReady = (parts: CloudWorkParts, operationId: string): Promise<void> =>
  parts.db.transaction(async (tx) => {
    const job = await readJob(tx, operationId)
    await tx.run(sql`update cloud_instances set status = 'ready', ready_at = coalesce(ready_at, now()),
      failure_reason = null where id = ${job.id}`)
    await note(tx, job, 'ready', 'resource.ready')
  })

/** Stops a machine; its disk stays. */
export const stopMachine = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
): Promise<void> => {
  const job = await readJob(parts.db, operationId)
  const cloud = await cloudOf(parts, job)
  await note(parts.db, job, 'stopping', 'resource.stopping')
  await cloud.driver.stop(job.providerId ?? '')
  await parts.sshSessions.forget([targetOf(parts, job)])
  await awaitStopped(job, cloud, signal)
  await recordStopped(parts.db, job)
}

const recordStopped = async (db: Db, job: CloudJob): Promise<void> => {
  await db.run(sql`update cloud_instances set status = 'stopped', public_address = null,
    private_address = null, ${computeEnds} where id = ${job.id}`)
}

/** Starts a machine that was stopped. */
export const startMachine = async (parts: CloudWorkParts, operationId: string): Promise<void> => {
  const job = await readJob(parts.db, operationId)
  const cloud = await cloudOf(parts, job)
  await startStopped(cloud, job.providerId ?? '')
  await note(parts.db, job, 'starting', 'resource.starting')
}

const endedIds = async (cloud: Cloud, job: CloudJob): Promise<string[]> => {
  const found = await cloud.driver.find(job.reference)
  return [...new Set([job.providerId, ...found.map(({ id }) => id)].filter((id) => id != null))]
}

/**
 * Ends everything that was made for an instance, and deletes its key. `failed`: the instance was
 * never ready.
 */
export const destroyMachine = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
  end: 'destroyed' | 'failed' = 'destroyed',
): Promise<void> => {
  const { db } = parts
  const job = await readJob(db, operationId)
  // What was never asked for is not there, so its provider is not needed.
  if (job.askedAt == null) return recordGone(db, job, end)
  const cloud = await cloudOf(parts, job)
  if (end === 'destroyed')
    await db.run(sql`update cloud_instances set status = 'destroying' where id = ${job.id}`)
  await note(db, job, 'destroying', 'resource.destroying')
  const ids = await endedIds(cloud, job)
  for (const id of ids) await cloud.driver.destroy(id)
  if (job.address != null) await parts.sshSessions.forget([targetOf(parts, job)])
  for (const id of ids) {
    const lack = () => `the machine ${id} is not ended yet at its provider`
    const isEnded = async (): Promise<true | undefined> => {
      const machine = await cloud.look(id)
      return machine === undefined || machine.state === 'gone' || machine.state === 'ending'
        ? true
        : undefined
    }
    await untilAnswered(isEnded, { everyMs: 500, signal, lack, deadlineMs: longestWaitMs / ids.length })
  }
  await recordGone(db, job, end)
}

const recordGone = (db: Db, job: CloudJob, end: 'destroyed' | 'failed'): Promise<void> =>
  db.transaction(async (tx) => {
    await tx.run(sql`update cloud_instances set status = ${end}, machine_gone = true, public_address = null,
        private_address = null, ssh_credential_ref = null, ssh_public_key = null,
        destroyed_at = ${end === 'destroyed' ? sql`now()` : sql`destroyed_at`},
        ${billingEnds} where id = ${job.id}`)
    await dropCredential(tx, 'ssh-key', keyIdOf(job.id))
    await note(tx, job, 'destroyed', 'resource.destroyed')
  })

/** Records why an operation's instance cannot be used. */
export const recordFailure = async (db: Db, operationId: string, reason: string): Promise<void> => {
  const job = await readJob(db, operationId)
  await db.transaction(async (tx) => {
    await note(tx, job, 'failed', 'resource.failed', { level: 'error', message: reason })
    if (job.kind !== 'validate')
      await tx.run(sql`update cloud_instances set status = 'failed', failure_reason = ${reason}
        where id = ${job.id} and status <> 'destroyed'`)
  })
}

const WaitRow = z.object({ phase: z.string(), isKnown: z.boolean() })

/**
 * Records why an operation waits: once, however often a phase meets the same reason again, until a
 * retry reopens the operation.
 */
export const recordProviderWait = async (db: Db, operationId: string, reason: string): Promise<void> => {
  const job = await readJob(db, operationId)
  const { phase, isKnown } = await db.one(
    WaitRow,
    sql`select o.phase, exists (select from operation_events e where e.kind = ${cloudKind.name}
        and e.operation_id = o.id and e.event_type = 'cloud.resource.waiting' and e.payload->>'phase' = o.phase
        and e.payload->>'message' = ${reason} and not exists (select from operation_events r
          where r.kind = e.kind and r.operation_id = o.id and r.sequence > e.sequence
            and r.event_type = ${`${cloudKind.events}.reopened`})) as is_known
      from cloud_operations o where o.id = ${operationId}`,
  )
  if (!isKnown) await note(db, job, phase, 'resource.waiting', { message: reason })
}

/**
 * Ends everything that a provisioning has made. Where the provider refuses for good, the instance
 * stays failed with a machine that may cost money, until a person destroys it or the idle time of its
 * target is over. A machine whose id is not on record is recorded by the sweep.
 */
const takeBack = async (parts: CloudWorkParts, job: CloudJob, signal: AbortSignal): Promise<void> => {
  try {
    await destroyMachine(parts, job.operationId, signal, 'failed')
  } catch (error) {
    const passes = error instanceof CloudError ? error.passes : !(error instanceof Refusal)
    if (passes) throw error
  }
}

/** How an operation has left a machine; `gone` where its provider shows it no more, or ends it. */
type Left = Machine | 'gone'

const leftOf = (machine: Machine | undefined): Left =>
  machine === undefined || machine.state === 'gone' || machine.state === 'ending' ? 'gone' : machine

/** How the provider shows the machine; undefined where it gives no answer. */
const lookOnce = async (parts: CloudWorkParts, job: CloudJob): Promise<Left | undefined> => {
  if (job.providerId == null) return undefined
  try {
    return leftOf(await (await cloudOf(parts, job)).look(job.providerId))
  } catch {
    return undefined
  }
}

/**
 * How the provider shows the machine behind a start, once it neither starts nor stops; a provider may
 * show a machine as stopped for a while after it has taken the start. Undefined where it refuses to
 * answer. @throws CloudError where a later answer may come, and the signal's reason
 */
const settledStart = async (
  parts: CloudWorkParts,
  job: CloudJob,
  signal: AbortSignal,
): Promise<Left | undefined> => {
  const { sshAddress } = configurationOf(await readTarget(parts.db, job.targetId))
  const since = performance.now()
  let looks = 0
  let moves = false
  const settled = async (): Promise<Left | undefined> => {
    const left = leftOf(await (await cloudOf(parts, job)).look(job.providerId ?? ''))
    if (left === 'gone') return left
    moves ||= left.state !== 'stopped' && left.state !== 'running'
    if (left.state === 'stopped') return moves || performance.now() - since > unseenMs ? left : undefined
    if (left.state !== 'running') return undefined
    looks += 1
    return isEarly(left, sshAddress, looks) ? undefined : left
  }
  try {
    const left = await poll(settled, { everyMs: 500, signal, deadlineMs: longestWaitMs })
    signal.throwIfAborted()
    return left
  } catch (error) {
    const passes = error instanceof CloudError ? error.passes : !(error instanceof Refusal)
    if (passes) throw error
    return undefined
  }
}

/**
 * Records what a start that did not complete has left: a machine that runs costs money. One of a
 * cancelled operation can be used as it is, because that operation cannot be retried.
 */
const leaveStarted = async (parts: CloudWorkParts, job: CloudJob, signal: AbortSignal): Promise<void> => {
  const { db } = parts
  const isCancelled = job.cancelRequestedAt != null
  const left = isCancelled ? await settledStart(parts, job, signal) : await lookOnce(parts, job)
  if (left === 'gone') return recordGone(db, job, 'failed')
  if (left?.state === 'running') await recordRunning(db, job, left)
  if (!isCancelled) return
  if (left?.state === 'stopped') await recordStopped(db, job)
  const [status, reason] =
    left === undefined
      ? ['failed', 'its start was cancelled, and its provider does not show whether it runs; destroy it']
      : [left.state === 'running' ? 'ready' : 'stopped', null]
  await db.run(
    sql`update cloud_instances set status = ${status}, failure_reason = ${reason} where id = ${job.id}`,
  )
}

/**
 * Cleans up after an operation that did not complete. A provisioning leaves no machine, unless it
 * failed while playbooks ran there: that machine can be configured again. Other operations leave
 * the machine, which may be retried or destroyed. What the provider has ended costs nothing more.
 * `reason`: of the operation, where its instance has none.
 */
export const leaveMachine = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
  reason?: string,
): Promise<void> => {
  const job = await readJob(parts.db, operationId)
  const isKept = job.readyAt != null || (job.configuringAt != null && job.cancelRequestedAt == null)
  const isStart = job.kind === 'start' || (job.kind === 'provision' && job.readyAt != null)
  if (job.kind !== 'validate' && !(isStart && job.cancelRequestedAt != null))
    await parts.db.run(sql`update cloud_instances set status = 'failed',
        failure_reason = coalesce(failure_reason, ${reason ?? `its ${job.kind} did not come to its end`})
      where id = ${job.id} and status not in ('destroyed', 'ready')`)
  if (job.kind === 'provision' && !isKept) await takeBack(parts, job, signal)
  else if (isStart && job.status !== 'ready' && job.status !== 'destroyed')
    await leaveStarted(parts, job, signal)
  else if (job.status !== 'destroyed' && (await lookOnce(parts, job)) === 'gone')
    await recordGone(parts.db, job, 'failed')
}
