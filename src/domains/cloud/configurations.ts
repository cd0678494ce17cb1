import { missingProgram, sandboxFault } from '../../drivers/ansible/sandbox.ts'
import { kept } from '../../pacing/kept.ts'
import { Refusal } from '../../refusal.ts'
import type { TargetMachineConfiguration } from './schemas.ts'

/** Runs that wait for a machine ask about twice a second. */
const keptMs = 10_000
const sandboxFaultHere = kept(keptMs, () => sandboxFault())

/**
 * Starts the programs that playbooks need, so no transaction may be open.
 * @returns the refusal, 503, where one is not on this machine, or may make no sandbox
 */
export const programsFault = async (): Promise<Refusal | undefined> => {
  const refuse = (why: string): Refusal =>
    new Refusal('unavailable', `machines cannot be configured: ${why}`, { retryAfterSeconds: 300 })
  const lacks = missingProgram()
  if (lacks !== undefined)
    return refuse(
      `the program ${lacks.program} is not installed on this machine; install the Debian package ${lacks.package}`,
    )
  const fault = await sandboxFaultHere()
  return fault === undefined
    ? undefined
    : refuse(
        `bubblewrap can make no sandbox on this machine (${fault}); let the account make user namespaces, or give a ` +
          'container the security_opt of docker-compose.yml (docs/operations.md, As containers)',
      )
}

/** The configurations of a target that are in force, in their order. */
export const wantedConfigurations = (
  given: readonly TargetMachineConfiguration[],
): TargetMachineConfiguration[] =>
  given.filter(({ enabled }) => enabled).toSorted((a, b) => a.executionOrder - b.executionOrder)

/**
 * The wanted configurations that have not ended well yet, each with the text that records its end. A
 * target may name a version several times: a further use is recorded with its place, because the id
 * alone stands for the first one.
 */
export const openConfigurations = (
  wanted: readonly TargetMachineConfiguration[],
  ended: readonly string[],
): { named: TargetMachineConfiguration; end: string }[] =>
  wanted
    .map((named, place) => {
      const { configurationVersionId: id } = named
      const isFirst = wanted.findIndex((other) => other.configurationVersionId === id) === place
      return { named, end: isFirst ? id : JSON.stringify([id, place]) }
    })
    .filter(({ end }) => !ended.includes(end))

/** The variables of a configuration, with the defaults of its schema. */
export const variablesOf = (
  { variables = {} }: Pick<TargetMachineConfiguration, 'variables'>,
  schema: Record<string, unknown> | null | undefined,
): Record<string, unknown> => {
  const properties = (schema?.['properties'] ?? {}) as Record<string, { default?: unknown }>
  const defaults = Object.entries(properties).flatMap(([name, one]) =>
    one?.default === undefined ? [] : [[name, one.default] as const],
  )
  return { ...Object.fromEntries(defaults), ...variables }
}
