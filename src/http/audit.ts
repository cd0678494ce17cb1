import type { Actor } from './access.ts'
import type { Body } from './exchange.ts'
import type { Route } from './route.ts'

/** One record of the audit trail: a mutating request and its outcome. */
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

const textOf =
  (text: string) =>
  ({ params, body }: { params: Record<string, string>; body: unknown }): string =>
    text.replace(
      /\{(\w+)\}/g,
      (_, name: string) => params[name] ?? String((body as Record<string, unknown>)[name]),
    )

/** Characters of a summary. */
const longestSummary = 4_096

/** A body that its route judges itself may hold a name of any size. */
const bounded = (text: string): string =>
  text.length <= longestSummary ? text : `${text.slice(0, longestSummary).toWellFormed()}…`

/**
 * The record of an answered mutation. The route's own fields read parameters and the checked body.
 * Where they fail, the record lacks them.
 */
export const auditRecord = (
  route: Route,
  call: { params: Record<string, string>; body: unknown; actor: Actor; requestId: string },
  answer: { status: number; code: string | undefined; body?: Body | undefined },
): AuditRecord => {
  const given = { params: call.params, body: call.body }
  const fields = route.audit === false ? undefined : route.audit
  // A refused document may lack members that the route's functions read.
  const read = <T>(
    field: ((given: { params: Record<string, string>; body: unknown }) => T) | undefined,
  ): T | undefined => {
    try {
      return field?.(given)
    } catch (error) {
      if (call.body === undefined && error instanceof TypeError) return undefined
      throw error
    }
  }
  const { summary } = fields ?? {}
  const deed = read(typeof summary === 'string' ? textOf(summary) : summary) ?? route.summary
  return {
    eventType: fields?.eventType ?? `${route.tag}.${route.method.toLowerCase()}`,
    actorId: call.actor.id,
    actorType: call.actor.type,
    environmentId: read(fields?.environmentId),
    resourceId: read(fields?.resourceId),
    connectionId: read(fields?.connectionId),
    executionId: read(fields?.executionId),
    outcome:
      answer.status >= 400 ? 'failed' : (fields?.outcome?.(JSON.parse(String(answer.body))) ?? 'succeeded'),
    summary: bounded(answer.status < 400 ? deed : `${answer.status === 500 ? 'failed' : 'refused'}: ${deed}`),
    metadata: {
      method: route.method,
      path: route.path,
      status: answer.status,
      ...(answer.code === undefined ? {} : { code: answer.code }),
      requestId: call.requestId,
    },
  }
}
