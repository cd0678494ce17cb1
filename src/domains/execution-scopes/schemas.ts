import { z } from 'zod'
import { Id, Metadata, Name, OptionalId } from '../../http/schema.ts'

/** The environment versions that a plan may use together. */
export const ExecutionScopeDocument = z
  .strictObject({
    id: Id,
    name: Name,
    networkTopologyId: OptionalId.default('').describe(
      'what a planning session uses that names none; a topology names its scope, not the other way round',
    ),
    environmentVersionIds: z.array(Id).min(1, 'must name at least one environment version'),
    metadata: Metadata,
  })
  .superRefine(
    (scope: unknown, context) => {
      const ids = (scope as { environmentVersionIds?: unknown } | undefined)?.environmentVersionIds
      if (!Array.isArray(ids)) return
      const seen = new Set<unknown>()
      ids.forEach((id: unknown, i) => {
        if (seen.has(id))
          context.addIssue({
            code: 'custom',
            path: ['environmentVersionIds', i],
            message: `${JSON.stringify(id)} is listed more than once; list it once`,
          })
        seen.add(id)
      })
    },
    { when: () => true },
  )
export type ExecutionScopeDocument = z.output<typeof ExecutionScopeDocument>
