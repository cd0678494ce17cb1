import type { RunFacts } from './run-facts.ts'

/** A run as PROV-JSON (https://www.w3.org/submissions/prov-json/). Pure. */

type Attributes = Record<string, unknown>

const xsd = (type: string, value: unknown) => ({ $: String(value), type: `xsd:${type}` })
const known = (attributes: Record<string, unknown>): Attributes =>
  Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== null && value !== undefined))

/**
 * Local part of a qualified name: any id, with the characters that names forbid percent-encoded.
 */
const local = (kind: string, id: string): string =>
  `orrery:${kind}/` +
  encodeURIComponent(id).replace(/[!'()*~]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`)

export const provDocument = (facts: RunFacts, apiUrl: string): Record<string, unknown> => {
  const { run, workflow } = facts
  const runId = local('run', run.id)
  const plan = local('plan', run.planId)
  const version = local('workflow-version', workflow.versionId)
  const agent = local('agent', run.actorId ?? 'unknown')
  const service = local('service', run.serviceVersion ?? 'unknown')
  const taskOf = (id: string): string => local('task', id)
  const fileOf = (id: string): string => local('file', id)
  let number = 0
  const relations = (items: Iterable<Attributes>): Record<string, Attributes> =>
    Object.fromEntries(Array.from(items, (item) => [`_:r${String(++number)}`, item]))

  return {
    prefix: { orrery: `${apiUrl}/#`, schema: 'http://schema.org/' },
    entity: Object.fromEntries([
      [plan, { 'prov:type': { $: 'prov:Plan', type: 'prov:QUALIFIED_NAME' } }],
      [version, known({ 'prov:label': workflow.name, 'orrery:definitionHash': workflow.hash })],
      ...facts.files.map((file) => [
        fileOf(file.id),
        known({
          'prov:label': file.path,
          'schema:contentSize': xsd('long', file.sizeBytes),
          'orrery:checksum': file.checksum,
        }),
      ]),
    ]),
    activity: Object.fromEntries([
      [
        runId,
        known({
          'prov:startTime': run.startedAt,
          'prov:endTime': run.finishedAt,
          'prov:label': run.title ?? run.id,
          'orrery:mode': run.mode,
          'orrery:status': run.status,
          'orrery:makespanSeconds': xsd('double', run.makespanSeconds),
          'orrery:cost': xsd('double', run.cost),
          'orrery:failureReason': run.failureReason,
        }),
      ],
      ...facts.attempts.map((attempt) => [
        taskOf(attempt.id),
        known({
          'prov:startTime': attempt.startedAt,
          'prov:endTime': attempt.finishedAt,
          'prov:label': facts.activities[attempt.position]?.name,
          'orrery:attempt': xsd('int', attempt.attempt),
          'orrery:status': attempt.status,
          'orrery:resource': attempt.resourceId,
          'orrery:runtimeSeconds': xsd('double', attempt.runtimeSeconds),
          'orrery:image': attempt.image ?? facts.activities[attempt.position]?.image,
          'orrery:imageDigest': attempt.imageDigest,
          'orrery:exitCode': attempt.exitCode === null ? null : xsd('int', attempt.exitCode),
          'orrery:failureReason': attempt.failureReason,
        }),
      ]),
    ]),
    agent: {
      [agent]: { 'prov:type': { $: 'prov:Person', type: 'prov:QUALIFIED_NAME' } },
      [service]: {
        'prov:type': { $: 'prov:SoftwareAgent', type: 'prov:QUALIFIED_NAME' },
        'prov:label': `Orrery ${run.serviceVersion ?? ''}`.trim(),
      },
    },
    wasAssociatedWith: relations([
      { 'prov:activity': runId, 'prov:agent': service, 'prov:plan': plan },
      ...facts.attempts.map(({ id }) => ({ 'prov:activity': taskOf(id), 'prov:agent': service })),
    ]),
    actedOnBehalfOf: relations([
      { 'prov:delegate': service, 'prov:responsible': agent, 'prov:activity': runId },
    ]),
    wasDerivedFrom: relations([{ 'prov:generatedEntity': plan, 'prov:usedEntity': version }]),
    wasStartedBy: relations(
      facts.attempts.map(({ id }) => ({ 'prov:activity': taskOf(id), 'prov:starter': runId })),
    ),
    wasGeneratedBy: relations(
      facts.files.map((file) => ({ 'prov:entity': fileOf(file.id), 'prov:activity': taskOf(file.task) })),
    ),
    used: relations([
      { 'prov:activity': runId, 'prov:entity': plan },
      ...facts.uses.map(({ task, file }) => ({ 'prov:activity': taskOf(task), 'prov:entity': fileOf(file) })),
    ]),
  }
}
