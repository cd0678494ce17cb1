import { hash } from 'node:crypto'
import { registryNamed } from '../../clients/registry.ts'
import type { AttemptFact, FileFact, RunFacts } from './run-facts.ts'

/**
 * A run as Provenance Run Crate 0.5 (https://w3id.org/ro/wfrun/provenance/0.5): the workflow with
 * its steps and tools, the run of the workflow, and the run of a tool for each attempt, with its
 * input and output files. Pure.
 */

type Json = string | number | boolean | readonly Json[] | { readonly [key: string]: Json | undefined }
export interface CrateEntity {
  readonly '@id': string
  readonly [key: string]: Json | undefined
}

/** Terms of the profile. No package holds its context document, so the crate includes them. */
const runTerms = [
  ...[
    'ContainerImage',
    'DockerImage',
    'SIFImage',
    'ParameterConnection',
    'connection',
    'sourceParameter',
    'targetParameter',
  ],
  ...[
    'containerImage',
    'environment',
    'registry',
    'resourceUsage',
    'tag',
    'md5',
    'sha1',
    'sha256',
    'sha512',
    'buildInstructions',
  ],
]
const ownTerms = 'https://w3id.org/ro/terms/workflow-run#'
const context = [
  'https://w3id.org/ro/crate/1.1/context',
  Object.fromEntries(runTerms.map((term) => [term, ownTerms + term])),
]

const profiles = [
  ['https://w3id.org/ro/wfrun/process/0.5', 'Process Run Crate', '0.5'],
  ['https://w3id.org/ro/wfrun/workflow/0.5', 'Workflow Run Crate', '0.5'],
  ['https://w3id.org/ro/wfrun/provenance/0.5', 'Provenance Run Crate', '0.5'],
  ['https://w3id.org/workflowhub/workflow-ro-crate/1.0', 'Workflow RO-Crate', '1.0'],
] as const

const ref = (id: string): { '@id': string } => ({ '@id': id })
/** A single value is not wrapped in a list, as RO-Crate recommends; an empty list is undefined. */
const refs = (ids: Iterable<string>): { '@id': string } | { '@id': string }[] | undefined => {
  const all = Array.from(ids, ref)
  return all.length > 1 ? all : all[0]
}

export interface CrateOptions {
  /** Base URL of the API that exported the crate. */
  apiUrl: string
  /** True where the crate holds the output files of attempts. */
  withOutputs: boolean
  /** Of such a crate: why a file, by its id, could not be read. It is described without its bytes. */
  unread?: ReadonlyMap<string, string>
}

export const workflowFile = 'workflow.json'
export const readmeFile = 'README.md'

const unreadText = (count: number): string =>
  count === 0 ? '' : `, of which ${String(count)} could not be read and are only described`

/** The README of the crate. */
export const readmeText = (
  { run, workflow, attempts, files }: RunFacts,
  { unread }: CrateOptions,
): string => `# Run ${run.id}

Workflow ${workflow.name} (version ${workflow.versionId}), plan ${run.planId}, mode ${run.mode}, ${run.status}.
${String(attempts.length)} attempts of activities, ${String(files.length)} files${unreadText(unread?.size ?? 0)}.

\`ro-crate-metadata.json\` says what ran where, for how long, with which image, inputs and outputs.
\`workflow.json\` is the workflow as the run executed it.
`

/** No common file system takes a longer part of a path, in bytes. */
const longestPart = 255

/**
 * A part of a path in an archive. What readers of archives take for something else, as `..`, `/` and
 * control characters, is percent-encoded, and a longer part is cut before its digest.
 */
const archivePart = (text: string): string => {
  const part = /^\.{1,2}$/.test(text)
    ? text.replaceAll('.', '%2E')
    : text.replace(/[\p{Cc}/\\]|%(?=[0-9a-f]{2})/giu, (character) => encodeURIComponent(character))
  if (Buffer.byteLength(part) <= longestPart) return part
  const digest = hash('sha256', text).slice(0, 32)
  return `${[...part].slice(0, 50).join('')}~${digest}`
}

/** Path of a file in the archive of a crate. */
export const crateFilePath = ({ task, path }: FileFact): string =>
  ['data', ...[task, ...path.split('/')].map(archivePart)].join('/')

/** Path of a file in the crate as URI, or a name for a file outside of it. */
const fileName = (file: FileFact, { withOutputs, unread }: CrateOptions): string =>
  withOutputs && unread?.has(file.id) !== true
    ? crateFilePath(file).split('/').map(encodeURIComponent).join('/')
    : `urn:orrery:file:${encodeURIComponent(file.id)}`

/** The workflow as the run executed it. */
export const workflowDocument = ({ workflow, activities, dependencies }: RunFacts): string =>
  JSON.stringify(
    {
      id: workflow.versionId,
      workflowId: workflow.id,
      name: workflow.name,
      version: workflow.version,
      definitionHash: workflow.hash,
      activities: activities.map(({ id, externalId, name, typeId, image, command }) => ({
        ...{ id, externalId, name, activityTypeId: typeId },
        ...(image === null ? {} : { image }),
        command,
      })),
      dependencies: dependencies.map(({ from, to }) => ({
        activityId: activities[to]?.id,
        dependsOnActivityId: activities[from]?.id,
      })),
    },
    undefined,
    1,
  )

const over = new Set(['completed', 'failed', 'cancelled'])
const statusOf = (status: string): string | undefined =>
  over.has(status)
    ? `http://schema.org/${status === 'completed' ? 'CompletedActionStatus' : 'FailedActionStatus'}`
    : undefined

/** Only a failed action may have an error. */
const errorOf = (status: string, reason: string | null): string | undefined =>
  over.has(status) && status !== 'completed' ? (reason ?? status) : undefined

/** The parts of `docker.io/library/debian:12-slim@sha256:…`. */
const imageParts = (reference: string, digest: string | null) => {
  const [named = '', own] = reference.split('@')
  const registry = registryNamed(named)
  const rest = registry === undefined ? named : named.slice(registry.length + 1)
  const colon = rest.lastIndexOf(':')
  const tag = colon > rest.lastIndexOf('/') ? rest.slice(colon + 1) : undefined
  const sha256 = /sha256:([0-9a-f]{64})/.exec(digest ?? own ?? '')?.[1]
  return {
    registry: registry ?? 'docker.io',
    name: tag === undefined ? rest : rest.slice(0, colon),
    tag,
    sha256,
  }
}

const toolId = (facts: RunFacts, { apiUrl }: CrateOptions, typeId: string): string =>
  `${apiUrl}/workflow-definitions/${encodeURIComponent(facts.workflow.id)}/#${encodeURIComponent(typeId)}`
const actionId = (attempt: AttemptFact): string => `#run-${encodeURIComponent(attempt.id)}`
const stepId = (position: number): string => `${workflowFile}#step-${String(position)}`
const imageId = (reference: string, digest: string | null): string =>
  `#image-${encodeURIComponent(`${reference} ${digest ?? ''}`.trim())}`

/** `unit` is a UN/CEFACT code: SEC second, AD byte, C62 one. */
const propertyValue = (id: string, name: string, value: number, unit = 'C62'): CrateEntity => ({
  '@id': id,
  '@type': 'PropertyValue',
  name,
  propertyID: `https://w3id.org/ro/terms/workflow-run#${name}`,
  value: String(value),
  unitCode: unit,
})

/** Facts that the attempts of a run share. */
interface Shared {
  facts: RunFacts
  options: CrateOptions
  agent: string
  given: ReadonlyMap<string, string[]>
  made: ReadonlyMap<string, FileFact[]>
  files: ReadonlyMap<string, string>
  resources: ReadonlyMap<string, string>
}

const toolRun = function* (shared: Shared, attempt: AttemptFact): Generator<CrateEntity> {
  const { facts } = shared
  const activity = facts.activities[attempt.position]
  if (activity === undefined) return
  const id = actionId(attempt)
  const exit = attempt.exitCode === null ? [] : [propertyValue(`${id}-exit`, 'exitCode', attempt.exitCode)]
  const usage = [
    ...(attempt.status === 'completed' || attempt.runtimeSeconds > 0
      ? [propertyValue(`${id}-runtime`, 'runtimeSeconds', attempt.runtimeSeconds, 'SEC')]
      : []),
    ...(attempt.cpuSeconds === null
      ? []
      : [propertyValue(`${id}-cpu`, 'cpuSeconds', attempt.cpuSeconds, 'SEC')]),
    ...(attempt.peakMemoryBytes === null
      ? []
      : [propertyValue(`${id}-memory`, 'peakMemoryBytes', attempt.peakMemoryBytes, 'AD')]),
    propertyValue(`${id}-cost`, 'cost', attempt.cost),
  ]
  const image = attempt.image ?? activity.image
  const made = (shared.made.get(attempt.id) ?? []).map((file) => shared.files.get(file.id) ?? '')
  const where = shared.resources.get(attempt.resourceId) ?? attempt.resourceId
  yield {
    '@id': id,
    '@type': 'CreateAction',
    name: `${activity.name}${attempt.attempt === 1 ? '' : `, attempt ${String(attempt.attempt)}`}`,
    description:
      `Activity ${activity.externalId} on ${where}: ` +
      `${attempt.status}${facts.run.mode === 'simulation' ? ' (simulated)' : ''}`,
    instrument: ref(toolId(facts, shared.options, activity.typeId)),
    agent: ref(shared.agent),
    location: ref(`#resource-${encodeURIComponent(attempt.resourceId)}`),
    object: refs((shared.given.get(attempt.id) ?? []).map((file) => shared.files.get(file) ?? '')),
    result: refs([...made, ...exit.map((one) => one['@id'])]),
    resourceUsage: refs(usage.map((one) => one['@id'])),
    ...(image === null || facts.run.mode === 'simulation'
      ? {}
      : { containerImage: ref(imageId(image, attempt.imageDigest)) }),
    startTime: attempt.startedAt ?? undefined,
    endTime: attempt.finishedAt ?? undefined,
    actionStatus: statusOf(attempt.status),
    error: errorOf(attempt.status, attempt.failureReason),
  }
  yield* exit
  yield* usage
  yield {
    '@id': `#control-${encodeURIComponent(attempt.id)}`,
    '@type': 'ControlAction',
    name: `Orchestrate ${activity.name}`,
    instrument: ref(stepId(attempt.position)),
    object: ref(id),
    actionStatus: statusOf(attempt.status),
    error: errorOf(attempt.status, attempt.failureReason),
  }
}

const images = function* ({ facts }: Shared): Generator<CrateEntity> {
  const seen = new Set<string>()
  if (facts.run.mode === 'simulation') return
  for (const attempt of facts.attempts) {
    const image = attempt.image ?? facts.activities[attempt.position]?.image
    if (image === null || image === undefined) continue
    const id = imageId(image, attempt.imageDigest)
    if (seen.has(id)) continue
    seen.add(id)
    const { registry, name, tag, sha256 } = imageParts(image, attempt.imageDigest)
    const form = image.endsWith('.sif') ? 'SIFImage' : 'DockerImage'
    yield {
      '@id': id,
      '@type': 'ContainerImage',
      additionalType: ref(ownTerms + form),
      registry,
      name,
      tag,
      sha256,
    }
  }
}

/** The workflow, its steps, and a tool for each type of activity. */
const workflowEntities = function* (
  { facts, options }: Shared,
  outputs: readonly FileFact[],
): Generator<CrateEntity> {
  const { workflow, activities } = facts
  const types = new Map(activities.map((activity) => [activity.typeId, activity.typeName]))
  const url = `${options.apiUrl}/workflow-definitions/${encodeURIComponent(workflow.id)}/`
  yield {
    '@id': workflowFile,
    '@type': ['File', 'SoftwareSourceCode', 'ComputationalWorkflow', 'HowTo'],
    name: workflow.name,
    description: `Workflow version ${workflow.versionId}, content ${workflow.hash}`,
    version: workflow.hash,
    url,
    encodingFormat: 'application/json',
    programmingLanguage: ref('#orrery-workflow'),
    license: ref('#license'),
    creator: ref('#agent'),
    conformsTo: ref('https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE'),
    output: refs(outputs.map(parameterId)),
    step: refs(activities.map(({ position }) => stepId(position))),
    hasPart: refs([...types.keys()].map((type) => toolId(facts, options, type))),
  }
  yield {
    '@id': '#orrery-workflow',
    '@type': 'ComputerLanguage',
    name: 'Orrery workflow',
    identifier: ref('https://w3id.org/workflowhub/workflow-ro-crate#orrery'),
    url: ref(url),
  }
  for (const [type, name] of types)
    yield {
      '@id': toolId(facts, options, type),
      '@type': 'SoftwareApplication',
      name,
      url,
      softwareVersion: workflow.hash,
    }
  for (const { position, name, typeId } of activities)
    yield {
      '@id': stepId(position),
      '@type': 'HowToStep',
      name,
      position: String(position),
      workExample: ref(toolId(facts, options, typeId)),
    }
}

const parameterId = (file: FileFact): string => `#output-${encodeURIComponent(file.objectId)}`

/** Files of completed attempts that no other attempt used: the results of the run. */
const finalFiles = ({ files, uses, attempts }: RunFacts): FileFact[] => {
  const used = new Set(uses.map(({ file }) => file))
  const completed = new Set(attempts.filter(({ status }) => status === 'completed').map(({ id }) => id))
  return files.filter((file) => completed.has(file.task) && !used.has(file.id))
}

const rootEntities = function* (shared: Shared, outputs: readonly FileFact[]): Generator<CrateEntity> {
  const { facts, options, agent } = shared
  const { run, workflow } = facts
  const actions = facts.attempts.map(actionId)
  yield {
    '@id': 'ro-crate-metadata.json',
    '@type': 'CreativeWork',
    about: ref('./'),
    conformsTo: refs(['https://w3id.org/ro/crate/1.1', 'https://w3id.org/workflowhub/workflow-ro-crate/1.0']),
  }
  yield {
    '@id': './',
    '@type': 'Dataset',
    name: run.title ?? `Run ${run.id} of ${workflow.name}`,
    description:
      `${run.mode === 'simulation' ? 'Simulation' : 'Execution'} ${run.id} of workflow ` +
      `${workflow.name} after plan ${run.planId}: ${run.status}`,
    datePublished:
      (run.finishedAt ?? run.createdAt).slice(0, 19) + (run.finishedAt ?? run.createdAt).slice(-6),
    license: ref('#license'),
    author: ref(agent),
    publisher: ref('#organization'),
    conformsTo: refs(profiles.map(([id]) => id)),
    mainEntity: ref(workflowFile),
    hasPart: refs([workflowFile, readmeFile, ...facts.files.map((file) => shared.files.get(file.id) ?? '')]),
    mentions: refs([`#run-of-${encodeURIComponent(run.id)}`, ...actions]),
  }
  for (const [id, name, version] of profiles) yield { '@id': id, '@type': 'CreativeWork', name, version }
  yield {
    '@id': '#license',
    '@type': 'CreativeWork',
    name: 'No license given',
    description: 'Whoever made the data decides on its use.',
  }
  yield {
    '@id': readmeFile,
    '@type': 'File',
    name: 'Description of the run',
    about: ref('./'),
    encodingFormat: 'text/markdown',
  }
  yield { '@id': agent, '@type': 'Person', name: run.actorId ?? 'unknown', affiliation: ref('#organization') }
  yield {
    '@id': '#organization',
    '@type': 'Organization',
    name: `Users of the service at ${options.apiUrl}`,
    url: options.apiUrl,
  }
  yield {
    '@id': options.apiUrl,
    '@type': 'SoftwareApplication',
    name: 'Orrery',
    url: options.apiUrl,
    softwareVersion: run.serviceVersion ?? 'unknown',
  }
  const id = `#run-of-${encodeURIComponent(run.id)}`
  const [results, exit] =
    outputs.length > 0
      ? [outputs.map((file) => shared.files.get(file.id) ?? ''), []]
      : [[`${id}-makespan`], [propertyValue(`${id}-makespan`, 'makespanSeconds', run.makespanSeconds, 'SEC')]]
  yield {
    '@id': id,
    '@type': 'CreateAction',
    name: run.title ?? `Run ${run.id}`,
    description: `${run.mode} run, ${run.status}; plan ${run.planId}`,
    instrument: ref(workflowFile),
    agent: ref(agent),
    result: refs(results),
    startTime: run.startedAt ?? undefined,
    endTime: run.finishedAt ?? undefined,
    actionStatus: statusOf(run.status),
    error: errorOf(run.status, run.failureReason),
  }
  yield* exit
  if (actions.length > 0)
    yield {
      '@id': `#orchestration-of-${encodeURIComponent(run.id)}`,
      '@type': 'OrganizeAction',
      name: `Orchestration of run ${run.id}`,
      instrument: ref(options.apiUrl),
      agent: ref(agent),
      object: refs(facts.attempts.map((attempt) => `#control-${encodeURIComponent(attempt.id)}`)),
      result: ref(id),
      startTime: run.startedAt ?? undefined,
      endTime: run.finishedAt ?? undefined,
      actionStatus: statusOf(run.status),
      error: errorOf(run.status, run.failureReason),
    }
}

/** The digest behind `sha256:`, or a bare one as manifests write it. */
const sha256Of = (checksum: string | null): string | undefined =>
  /^(?:sha256:)?([0-9a-f]{64})$/.exec(checksum ?? '')?.[1]

const fileEntities = function* (
  { facts, files, options }: Shared,
  outputs: readonly FileFact[],
): Generator<CrateEntity> {
  const final = new Set(outputs.map(({ id }) => id))
  for (const file of facts.files)
    yield {
      '@id': files.get(file.id) ?? '',
      '@type': 'File',
      name: file.path,
      contentSize: String(file.sizeBytes),
      sha256: sha256Of(file.checksum),
      encodingFormat: file.mediaType ?? 'application/octet-stream',
      exampleOfWork: final.has(file.id) ? ref(parameterId(file)) : undefined,
      description: options.unread?.get(file.id),
    }
  for (const file of outputs)
    yield {
      '@id': parameterId(file),
      '@type': 'FormalParameter',
      conformsTo: ref('https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE'),
      additionalType: 'File',
      name: file.path,
      workExample: ref(files.get(file.id) ?? ''),
    }
}

/** Every entity of the crate of a run. */
export const crateEntities = function* (facts: RunFacts, options: CrateOptions): Generator<CrateEntity> {
  const given = new Map<string, string[]>()
  for (const { task, file } of facts.uses) {
    const list = given.get(task) ?? []
    list.push(file)
    given.set(task, list)
  }
  const shared: Shared = {
    facts,
    options,
    agent: '#agent',
    given,
    made: Map.groupBy(facts.files, ({ task }) => task),
    files: new Map(facts.files.map((file) => [file.id, fileName(file, options)])),
    resources: new Map(facts.resources.map(({ id, name }) => [id, name])),
  }
  const outputs = finalFiles(facts)
  yield* rootEntities(shared, outputs)
  yield* workflowEntities(shared, outputs)
  yield* images(shared)
  for (const id of new Set(facts.attempts.map((attempt) => attempt.resourceId)))
    yield {
      '@id': `#resource-${encodeURIComponent(id)}`,
      '@type': 'Place',
      name: shared.resources.get(id) ?? id,
      identifier: id,
    }
  for (const attempt of facts.attempts) yield* toolRun(shared, attempt)
  yield* fileEntities(shared, outputs)
}

/** The metadata document, in pieces. */
export const crateText = function* (facts: RunFacts, options: CrateOptions): Generator<string> {
  yield `{"@context":${JSON.stringify(context)},"@graph":[`
  let before = '\n'
  for (const entity of crateEntities(facts, options)) {
    yield before + JSON.stringify(entity)
    before = ',\n'
  }
  yield '\n]}\n'
}
