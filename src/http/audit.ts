import type { Actor } from './access.ts'
import type { Route } from './route.ts'

/** One record of the audit trail: a request that would change something, and how it ended. */
export interface AuditRecord {
  eventType: string
  actorId: string
  actorType: Actor['type']
  environmentId: string | undefined
  resourceId: string | undefined
  connectionId: string | undefined
  executionId: string | undefined
  outcome: 'succeeded' | 'failed'
  summary: string
  metadata: { method: string; path: string; status: number; code?: string; requestId: string }
}

/** The record of an answered mutation. The route's own fields see parameters and the checked body; where they fail the record says less. */
export const auditRecord = (
  route: Route,
  call: { params: Record<string, string>; body: unknown; actor: Actor; requestId: string },
  answer: { status: number; code: string | undefined; body?: string | Buffer | undefined },
): AuditRecord => {
  const given = { params: call.params, body: call.body }
  const fields = route.audit === false ? undefined : route.audit
  // A refused document may lack what the route's functions read from it.
  const read = <T>(field: ((given: { params: Record<string, string>; body: unknown }) => T) | undefined): T | undefined => {
    try {
      return field?.(given)
    } catch (error) {
      if (call.body === undefined && error instanceof TypeError) return undefined
      throw error
    }
  }
  const deed = read(fields?.summary) ?? route.summary
  return {
    eventType: fields?.eventType ?? `${route.tag}.${route.method.toLowerCase()}`,
    actorId: call.actor.id,
    actorType: call.actor.type,
    environmentId: read(fields?.environmentId),
    resourceId: read(fields?.resourceId),
    connectionId: read(fields?.connectionId),
    executionId: read(fields?.executionId),
    outcome: answer.status >= 400 ? 'failed' : (fields?.outcome?.(JSON.parse(String(answer.body))) ?? 'succeeded'),
    summary: answer.status < 400 ? deed : `${answer.status === 500 ? 'failed' : 'refused'}: ${deed}`,
    metadata: {
      method: route.method,
      path: route.path,
      status: answer.status,
      ...(answer.code === undefined ? {} : { code: answer.code }),
      requestId: call.requestId,
    },
  }
}
