import { missingProgram, sandboxFault } from '../../drivers/ansible/sandbox.ts'
import { Refusal } from '../../refusal.ts'
import type { TargetMachineConfiguration } from './schemas.ts'

/**
 * @throws Refusal 503 where a program that playbooks need is not on this machine, or may make no
 *   sandbox
 */
export const requirePrograms = async (path?: string): Promise<void> => {
  const refuse = (why: string): Refusal =>
    new Refusal('unavailable', `machines cannot be configured: ${why}`, { retryAfterSeconds: 300 })
  const lacks = missingProgram(path)
  if (lacks !== undefined)
    throw refuse(
      `the program ${lacks.program} is not installed on this machine; install the Debian package ${lacks.package}`,
    )
  const fault = await sandboxFault(path)
  if (fault !== undefined)
    throw refuse(
      `bubblewrap can make no sandbox on this machine (${fault}); let the account make user namespaces, or give a ` +
        'container security_opt: [seccomp=unconfined, apparmor=unconfined, systempaths=unconfined]',
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
