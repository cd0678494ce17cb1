import type { Problem } from '../../refusal.ts'
import { isFields, type Fields } from '../../json-object.ts'

const isText = (value: unknown): value is string => typeof value === 'string' && value.trim() !== ''
/** A reference is the id itself or an object that holds it. */
const isReference = (value: unknown): boolean => isText(value) || (isFields(value) && isText(value['id']))

/** The members that locate the program. Each source type needs at least one of its own. */
const locators: Record<string, readonly string[]> = {
  catalog: ['artifactRef'],
  oci: ['reference'],
  'local-container-image': ['reference'],
  build: ['artifactBuildRef'],
  'local-file': ['path'],
  'remote-file': ['path'],
  'object-storage': ['uri'],
  http: ['uri'],
}
const sourceKeys = new Set([
  'type',
  'reference',
  'path',
  'uri',
  'artifactRef',
  'artifactBuildRef',
  'environmentRef',
  'resourceRef',
])
const optionalTexts = ['expectedDigest', 'credentialRef']
const strategies = [
  'auto',
  'managed',
  'use-in-place',
  'destination-pull',
  'gateway-transfer',
  'build-and-transfer',
  'prefer-in-place',
]

const oneOf = (values: readonly string[]): string => `must be one of ${values.join(', ')}`

/** An executable as it is kept: without null and blank members, which count as left out. */
export const keptExecutable = (given: Fields): Fields =>
  Object.fromEntries(
    Object.entries(given).flatMap(([key, member]) =>
      member === '' || member === null ? [] : [[key, isFields(member) ? keptExecutable(member) : member]],
    ),
  )

/**
 * Problems of `command.executable` (domain-reference 9.1): `{source: {type, <locator>}, delivery?:
 * {strategy?, targetFormat?}, expectedDigest?, format?, credentialRef?}`; the last three may also be
 * members of `source`.
 */
export function executableProblems(given: Fields, path: string): Problem[] {
  const executable = keptExecutable(given)
  const problems: Problem[] = []
  const report = (at: string, message: string): void => void problems.push({ path: `${path}.${at}`, message })

  const extras = (fields: Fields, at: string): void => {
    for (const key of optionalTexts)
      if (fields[key] !== undefined && !isText(fields[key]))
        report(`${at}${key}`, 'must be a text that is not blank')
    if (fields['format'] !== undefined && fields['format'] !== 'oci' && fields['format'] !== 'sif')
      report(`${at}format`, oneOf(['oci', 'sif']))
  }
  const unknown = (fields: unknown, known: ReadonlySet<string>, at: string): void => {
    for (const key of Object.keys(isFields(fields) ? fields : {}))
      if (!known.has(key)) report(`${at}${key}`, 'is not a known key here; remove it or correct its spelling')
  }

  unknown(given, new Set(['source', 'delivery', 'format', ...optionalTexts]), '')
  extras(executable, '')

  const source = executable['source']
  if (!isFields(source)) report('source', 'is required: an object with type and its locator')
  else {
    unknown(given['source'], new Set([...sourceKeys, 'format', ...optionalTexts]), 'source.')
    extras(source, 'source.')
    const needed = typeof source['type'] === 'string' ? locators[source['type']] : undefined
    if (needed === undefined) report('source.type', oneOf(Object.keys(locators)))
    for (const key of needed ?? []) {
      const present = key.endsWith('Ref') ? isReference(source[key]) : isText(source[key])
      if (!present) report(`source.${key}`, `is required where source.type is ${String(source['type'])}`)
    }
    if (
      source['type'] === 'remote-file' &&
      !isReference(source['environmentRef']) &&
      !isReference(source['resourceRef'])
    ) {
      report('source', 'needs environmentRef or resourceRef where source.type is remote-file')
    }
  }

  const delivery = executable['delivery']
  if (delivery === undefined) return problems
  if (!isFields(delivery)) report('delivery', 'must be an object like {strategy: auto}')
  else {
    unknown(given['delivery'], new Set(['strategy', 'targetFormat']), 'delivery.')
    if (delivery['strategy'] !== undefined && !strategies.includes(delivery['strategy'] as string))
      report('delivery.strategy', oneOf(strategies))
    if (delivery['targetFormat'] !== undefined && !isText(delivery['targetFormat']))
      report('delivery.targetFormat', 'must be a text that is not blank')
  }
  return problems
}
