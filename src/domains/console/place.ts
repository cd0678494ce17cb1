import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { driverKinds, kindOf, type KindName } from '../../drivers/runtime/registry.ts'
import { placeOf, rehearsalSite, type Place } from '../../executor/sites.ts'
import { unacceptableAt } from '../../refusal.ts'
import { surroundingsOf } from '../execution-runs/accept.ts'
import { withSiteDefaults } from '../execution-runs/site-defaults.ts'

/** The place of a resource's console, as the record stores it. */
export const ConsolePlace = z.object({
  site: z.string(),
  kind: z.enum(Object.keys(driverKinds) as [KindName, ...KindName[]]),
  connectionId: z.string().optional(),
  host: z.string().optional(),
  configuration: z.record(z.string(), z.unknown()),
  /** True for a terminal on a node that the cluster allocates, instead of its login node. */
  onNode: z.boolean().optional(),
})
export type SessionPlace = Place & { onNode?: boolean | undefined }

export interface Console {
  runtimeId: string
  place: SessionPlace
}

const BoundRow = z.object({
  runtimeId: z.string(),
  environmentVersionId: z.string(),
  driver: z.string(),
  configuration: z.record(z.string(), z.unknown()).optional(),
  binding: z.record(z.string(), z.unknown()).optional(),
})

/** The facts of this service that complete a runtime's configuration. */
export interface ConsoleSurroundings {
  hostId: string
  /** SERVICE_KUBERNETES_HELPER_IMAGE. */
  kubernetesHelperImage: string
}

/** Kinds of sites with consoles. */
const served: ReadonlySet<string> = new Set(['local', 'ssh', 'slurm', 'kubernetes'])

const refuse = (message: string) => unacceptableAt('resourceId', message)

/**
 * The place of a resource's console: its first enabled binding to a runtime with a console, in the
 * order that tasks use.
 * @throws Refusal 422 for a resource that is unknown or has no such binding, and for a runtime
 *   whose configuration has faults
 */
export const consoleOf = async (
  db: Db,
  resourceId: string,
  surroundings: ConsoleSurroundings,
): Promise<Console> => {
  const shown = JSON.stringify(resourceId)
  const type = await db.value(z.string(), sql`select type from resources where id = ${resourceId}`)
  if (type === undefined)
    throw refuse(`is ${shown}, which does not exist; name a resource of a saved environment`)
  const bound = await db.many(
    BoundRow,
    sql`select r.id as runtime_id, r.environment_version_id, r.driver, r.configuration, b.configuration as binding
        from resource_runtime_bindings b join runtimes r on r.id = b.runtime_id
        where b.resource_id = ${resourceId} and b.enabled and r.mode = 'execution' order by b.position, r.id limit 100`,
  )
  if (bound.length === 0)
    throw refuse(`is ${shown}, which no enabled binding joins to a runtime; enable one in its environment`)
  const usable = bound.find(({ driver }) => served.has(driver))
  if (usable === undefined)
    throw refuse(
      `is ${shown}, whose runtimes have no console (${bound.map((one) => one.driver).join(', ')}); ` +
        'bind it to one with driver local, ssh, slurm or kubernetes',
    )
  const place = await reached(db, resourceId, usable, surroundings)
  const onNode = kindOf(place.kind).hasPartitions && type === 'hpc_machine'
  return { runtimeId: usable.runtimeId, place: onNode ? { ...place, onNode } : place }
}

const reached = async (
  db: Db,
  resourceId: string,
  { runtimeId, environmentVersionId, driver, configuration, binding }: z.output<typeof BoundRow>,
  { hostId, kubernetesHelperImage: helperImage }: ConsoleSurroundings,
): Promise<Place> => {
  const bindings = [{ resourceId, runtimeId, ...(binding === undefined ? {} : { configuration: binding }) }]
  const runtime = { id: runtimeId, driver, environmentVersionId, ...(configuration && { configuration }) }
  const used = new Set([JSON.stringify([runtimeId, resourceId])])
  const { runtimes, problems } = withSiteDefaults(
    { runtimes: [runtime], bindings, used },
    await surroundingsOf(db, [runtime], [], { helperImage }),
  )
  const of = `runtime ${JSON.stringify(runtimeId)} of ${JSON.stringify(resourceId)}`
  const place = placeOf({ hostId, runtimes, runtimeBindings: bindings, resources: [] }, runtimeId, resourceId)
  if (place.site === rehearsalSite) throw refuse(`cannot be used: ${of} starts nothing (launch: none)`)
  const { connection: needed, problems: faultsOf } = kindOf(place.kind)
  const nothing = { gpus: 0, timeoutSeconds: 0, memoryBytes: 0 }
  const [fault] = [...problems, ...(faultsOf?.(place.configuration, nothing) ?? [])]
  if (fault !== undefined) throw refuse(`cannot be used: ${of}: ${fault.path} ${fault.message}`)
  if (needed === undefined || place.connectionId === undefined) return place
  const connection = await db.value(
    z.string(),
    sql`select type from connections where id = ${place.connectionId}`,
  )
  const fits = connection === needed.type || (needed.type === 'ssh' && connection === 'local')
  if (!fits)
    throw refuse(
      `cannot be used: ${of} names ${JSON.stringify(place.connectionId)}, which is no connection of ` +
        `type ${needed.type}`,
    )
  return place
}
