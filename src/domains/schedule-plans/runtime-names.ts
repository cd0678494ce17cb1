import type { Problem } from '../../refusal.ts'

/** An assignment with the runtime that its `metadata.runtimeId` names. */
export interface NamedRuntime {
  resourceId: string
  runtimeId: string | undefined
  /** The assignment's path in the sent or stored document. */
  path: string
}

export interface Bindings {
  runtimes: readonly { id: string }[]
  bindings: readonly { resourceId: string; runtimeId: string; enabled: boolean }[]
}

/** The runtime that an assignment names, of any mode. */
export const namedRuntime = (assignment: {
  metadata?: Record<string, unknown> | null | undefined
}): string | undefined => {
  const named = assignment.metadata?.['runtimeId']
  return typeof named === 'string' && named !== '' ? named : undefined
}

/**
 * Problems of the runtimes that assignments name: unknown ones, and those without an enabled
 * binding of the assignment's resource.
 */
export const runtimeProblems = (
  named: readonly NamedRuntime[],
  { runtimes, bindings }: Bindings,
): Problem[] => {
  const known = new Set(runtimes.map(({ id }) => id))
  const enabled = new Map(
    bindings.map(({ resourceId, runtimeId, enabled: on }) => [JSON.stringify([resourceId, runtimeId]), on]),
  )
  return named.flatMap(({ resourceId, runtimeId, path }) => {
    if (runtimeId === undefined) return []
    const binding = enabled.get(JSON.stringify([resourceId, runtimeId]))
    if (binding === true) return []
    const names = `${JSON.stringify(runtimeId)} for resource ${JSON.stringify(resourceId)}`
    const message = !known.has(runtimeId)
      ? `${JSON.stringify(runtimeId)} names no runtime; name one that is bound to resource ` +
        `${JSON.stringify(resourceId)}, or leave it out`
      : binding === false
        ? `the binding of runtime ${names} is disabled; enable it, name another runtime, or leave it out`
        : `there is no binding of runtime ${names}; bind it, name another runtime, or leave it out`
    return [{ path: `${path}.metadata.runtimeId`, message }]
  })
}
