import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { PinnedExecutable, RunExecutables } from '../../executor/executables.ts'
import { kindOf } from '../../drivers/runtime/registry.ts'
import { isOwnMachine, placer, runsContainers, type Place, type SiteFacts } from '../../executor/sites.ts'
import { Refusal, type Problem } from '../../refusal.ts'
import { acceptRun } from '../artifacts/runs.ts'
import { loadCommands, type ActivityCommand } from '../workflow-definitions/store.ts'
import type { Findings, OutsideQuestion } from './executable-findings.ts'
import { parseExecutable, resolveExecutable, type Executable, type Target } from './executable-sources.ts'

type Pairs = readonly { runtimeId: string; resourceId: string }[]

/** Thrown while a transaction resolves executables: the answers are outside of the database. */
export class Unfound extends Error {
  override readonly name = 'Unfound'
  readonly questions: readonly OutsideQuestion[]
  readonly facts: SiteFacts
  readonly pairs: Pairs
  constructor(questions: readonly OutsideQuestion[], facts: SiteFacts, pairs: Pairs) {
    super('executables have to be looked up')
    this.questions = questions
    this.facts = facts
    this.pairs = pairs
  }
}

/** What a run's executables are: `builds`: runs of builds that were started for it. */
export interface Pinned {
  executables?: RunExecutables
  builds: string[]
  problems: Problem[]
}

const names: Readonly<Record<string, string>> = { '': 'amd64', x86_64: 'amd64', aarch64: 'arm64' }
const architectureOf = (value: unknown): string => {
  const text = typeof value === 'string' ? value.toLowerCase() : ''
  return names[text] ?? text
}

const engineOf = ({ kind, configuration }: Place): string => {
  const { containerRuntime } = configuration
  if (kindOf(kind).inNamespace) return 'kubernetes'
  return typeof containerRuntime === 'string' ? containerRuntime : 'auto'
}

/** The executable of an activity; an image alone is one. */
export const executableOf = ({ command }: Pick<ActivityCommand, 'command'>): Executable | undefined =>
  parseExecutable(
    command.executable ??
      (command.image === undefined || command.image === ''
        ? undefined
        : { source: { type: 'oci', reference: command.image }, delivery: { strategy: 'auto' } }),
  )

const VersionRow = z.object({ id: z.string(), environmentId: z.string() })

const versionOf = ({ environmentVersionId: id }: Record<string, unknown>): string[] =>
  typeof id === 'string' ? [id] : []

/** By resource, environment and version of it: the site of the run that holds its files. */
const holders = async (tx: Db, facts: SiteFacts, pairs: Pairs) => {
  const placed = placer(facts)
  const versions = facts.resources.flatMap(versionOf)
  const rows = await tx.many(
    VersionRow,
    sql`select id, environment_id from environment_versions where id = any(${versions}::text[])`,
  )
  const environments = new Map(rows.map(({ id, environmentId }) => [id, environmentId]))
  const sites = new Map<string, string>()
  const resources = new Map(facts.resources.map((resource) => [resource.id, resource]))
  for (const { runtimeId, resourceId } of pairs) {
    const { site } = placed(runtimeId, resourceId)
    const [version] = [resources.get(resourceId) ?? {}].flatMap(versionOf)
    for (const reference of [resourceId, version, environments.get(version ?? '')])
      if (reference !== undefined && !sites.has(reference)) sites.set(reference, site)
  }
  return (reference: string): string | undefined => sites.get(reference)
}

/** Starts the builds that pins wait for, once each. @returns the runs that are new */
const startBuilds = async (tx: Db, pins: readonly PinnedExecutable[], hostId: string): Promise<string[]> => {
  const waiting = pins.flatMap(({ buildId, digest }) =>
    buildId === undefined || digest !== undefined ? [] : [buildId],
  )
  const started: string[] = []
  for (const buildId of new Set(waiting)) {
    const { id, isNew } = await acceptRun(tx, { buildId, newId: randomUUID(), fresh: false, hostId })
    if (isNew) started.push(id)
  }
  return started
}

/**
 * Resolves every executable of a real run that runs in a container, in the run's transaction.
 * @throws Unfound where something outside has to be asked first
 */
export const pinExecutables = async (
  tx: Db,
  given: {
    contentVersionId: string
    count: number
    facts: SiteFacts
    pairs: Pairs
    findings: Findings
  },
): Promise<Pinned> => {
  const { facts, pairs, findings } = given
  const placed = placer(facts)
  const places = pairs.map(({ runtimeId, resourceId }) => placed(runtimeId, resourceId))
  if (!places.some(runsContainers)) return { builds: [], problems: [] }
  const commands = await loadCommands(tx, given.contentVersionId, [...places.keys()])
  const holderOf = await holders(tx, facts, pairs)
  const architectures = new Map(facts.resources.map((one) => [one.id, architectureOf(one['architecture'])]))
  const of = new Array<number>(given.count).fill(-1)
  const pins: PinnedExecutable[] = []
  const known = new Map<string, number | undefined>()
  const problems: Problem[] = []
  const questions = new Map<string, OutsideQuestion>()
  for (const command of commands) {
    const place = places[command.position]
    const executable = executableOf(command)
    if (place === undefined || executable === undefined || !runsContainers(place)) continue
    const { resourceId = '' } = pairs[command.position] ?? {}
    const target: Target = {
      ...{ site: place.site, resourceId, engine: engineOf(place), hostId: facts.hostId, holderOf },
      ...(typeof place.configuration['containerHost'] === 'string'
        ? { socket: place.configuration['containerHost'].replace(/^unix:\/\//, '') }
        : {}),
      architecture: architectures.get(resourceId) ?? 'amd64',
      here: isOwnMachine(place) && place.host === facts.hostId,
    }
    const key = JSON.stringify([executable, target])
    if (!known.has(key)) {
      const resolved = await resolveExecutable({ executable, target, findings, tx })
      let at: number | undefined
      if ('pin' in resolved) at = pins.push({ ...resolved.pin, id: `executable-${String(pins.length)}` }) - 1
      else if ('question' in resolved) questions.set(JSON.stringify(resolved.question), resolved.question)
      else if ('busy' in resolved) throw new Refusal('unavailable', resolved.busy, { retryAfterSeconds: 10 })
      else
        problems.push({
          path: `activities.${command.id}.command.executable`,
          message: resolved.problem,
        })
      known.set(key, at)
    }
    of[command.position] = known.get(key) ?? -1
  }
  if (questions.size > 0) throw new Unfound([...questions.values()], facts, pairs)
  if (problems.length > 0) return { builds: [], problems }
  const builds = await startBuilds(tx, pins, facts.hostId)
  return { executables: { pins, of }, builds, problems }
}
