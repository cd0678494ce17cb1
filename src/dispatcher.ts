import type { Db } from './db/sql.ts'
import type { NewAuditEvent } from './domains/audit-events/schemas.ts'
import { recordAudit } from './domains/audit-events/store.ts'
import type { Engine, Kind, Standing, Telling } from './engine.ts'
import type { Log } from './observability/log.ts'
import type { Metrics } from './observability/metrics.ts'

/** A record and its generation, which name its workflow. */
export interface Named {
  id: string
  generation: number
}

/** Records of one kind whose workflow may be missing. */
export interface Dispatched {
  kind: Kind
  /** Accepted and never started, in order of acceptance. */
  undispatched: (db: Db, limit: number) => Promise<Named[]>
  markDispatched: (db: Db, id: string) => Promise<unknown>
  /** Open in the record, and started once; their workflow may have been terminated, or lost with Temporal's data. */
  open: (db: Db, limit: number) => Promise<Named[]>
  isOpen: (db: Db, id: string, generation: number) => Promise<boolean>
  /** What Temporal's page says of it. */
  telling: (db: Db, id: string, generation: number) => Promise<Telling | undefined>
  /** Open records are looked at this often. */
  lookEverySeconds: number
  /** Type of the audit record of a workflow that began again, and the record's place in it. */
  audit: (id: string) => Pick<NewAuditEvent, 'eventType' | 'executionId' | 'sessionId' | 'connectionId'>
  /** Puts it among the record's own events, where it has some. */
  note?: (tx: Db, id: string, facts: { workflow: string }) => Promise<unknown>
}

export interface DispatcherParts {
  db: Db
  engine: Pick<Engine, 'start' | 'standing'>
  metrics: Pick<Metrics, 'workflowRestarted'>
}

const everyMs = 1_000
const batch = 200
/** Executions made by a reset that are remembered as noted; one that is forgotten is noted twice. */
const mostRemembered = 10_000

/** Why a workflow begins again, in the words of the log and the audit. */
const causeOf = ({ state, end }: Standing): string =>
  state === 'open' ? 'was reset' : state === 'missing' ? 'is unknown to Temporal' : `had ended there as ${(end ?? 'UNKNOWN').toLowerCase()}`

/**
 * Starts what was accepted while Temporal was away, in order of acceptance, and looks now and then whether open records still have their
 * workflow: the record wins over what was ended on Temporal's page, and each such start leaves an event, a warning and a count. The record
 * is the queue: nothing is lost by a crash between commit and start.
 */
export const openDispatcher = (
  { db, engine, metrics }: DispatcherParts,
  kinds: readonly Dispatched[],
  log: Log,
): { stop(): Promise<void> } => {
  let stopped = false
  let wake: () => void = () => undefined
  const lookAt = new Map<Kind, number>()
  const resetsNoted = new Set<string>()

  const noteRestart = async (of: Dispatched, { id, generation }: Named, standing: Standing): Promise<void> => {
    const cause = causeOf(standing)
    const open = await db.transaction(async (tx) => {
      if (!(await of.isOpen(tx, id, generation))) return false
      await of.note?.(tx, id, { workflow: cause })
      await recordAudit(tx, {
        ...of.audit(id),
        actorId: 'temporal',
        actorType: 'service',
        outcome: 'started',
        summary: `the workflow of ${id} ${cause}; the record is open, so it goes on in a new one`,
        metadata: { kind: of.kind, generation, cause },
      })
      return true
    })
    if (!open) return
    metrics.workflowRestarted(of.kind)
    log.warn({ kind: of.kind, recordId: id, generation, cause }, 'the workflow of an open record was started again')
  }

  /** False: Temporal is away. */
  const look = async (of: Dispatched, named: Named): Promise<boolean> => {
    const { id, generation } = named
    const standing = await engine.standing(of.kind, id, generation)
    if (standing === undefined) return false
    if (standing.state === 'open') {
      if (standing.reset !== true || standing.execution === undefined || resetsNoted.has(standing.execution)) return true
      if (resetsNoted.size >= mostRemembered) resetsNoted.clear()
      resetsNoted.add(standing.execution)
      await noteRestart(of, named, standing)
      return true
    }
    // It may have ended with its record since that was read.
    if (!(await of.isOpen(db, id, generation))) return true
    const started = await engine.start(of.kind, id, generation, await of.telling(db, id, generation))
    if (started === 'started') await noteRestart(of, named, standing)
    return started !== false
  }

  const round = async (): Promise<void> => {
    for (const of of kinds) {
      const { kind, undispatched, markDispatched, open, telling } = of
      for (const { id, generation } of await undispatched(db, batch)) {
        if (stopped || !(await engine.start(kind, id, generation, await telling(db, id, generation)))) return
        await markDispatched(db, id)
      }
      if (Date.now() < (lookAt.get(kind) ?? 0)) continue
      for (const named of await open(db, 1_000)) if (stopped || !(await look(of, named))) return
      lookAt.set(kind, Date.now() + of.lookEverySeconds * 1_000)
    }
  }

  const running = (async () => {
    while (!stopped) {
      try {
        await round()
      } catch (error) {
        log.warn({ err: error }, 'accepted work could not be looked for; it is looked for again')
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, everyMs)
        wake = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
  })()
  return {
    async stop() {
      stopped = true
      wake()
      await running
    },
  }
}
