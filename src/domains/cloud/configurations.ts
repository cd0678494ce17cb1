import { missingProgram } from '../../drivers/ansible/sandbox.ts'
import { Refusal } from '../../refusal.ts'
import type { TargetMachineConfiguration } from './schemas.ts'

/** The refusal where a program that playbooks need is not on this machine. */
export const requirePrograms = (path?: string): void => {
  const lacks = missingProgram(path)
  if (lacks === undefined) return
  throw new Refusal(
    'unavailable',
    `machines cannot be configured: the program ${lacks.program} is not installed on this machine; ` +
      `install the Debian package ${lacks.package}`,
    { retryAfterSeconds: 300 },
  )
}

/** The configurations of a target that are in force, in their order. */
export const wantedConfigurations = (
  given: readonly TargetMachineConfiguration[],
): TargetMachineConfiguration[] =>
  given.filter(({ enabled }) => enabled).toSorted((a, b) => a.executionOrder - b.executionOrder)

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
