import { z } from 'zod'
import { exact, withBlank } from '../../http/keys.ts'
import { pageQueryOf, wholeNumber, type Sizes } from '../../http/paging.ts'
import { MadeId } from '../../http/schema.ts'

const fieldTypes = [
  'identifier',
  'text',
  'status',
  'datetime',
  'number',
  'bytes',
  'boolean',
  'duration',
  'currency',
] as const

export const EntityDescriptor = z
  .strictObject({
    name: z.string(),
    table: z.string().describe('its name in SQL; the name of the entity works there too'),
    label: z.string(),
    description: z.string(),
    fields: z.array(z.strictObject({ name: z.string(), label: z.string(), type: z.enum(fieldTypes) })),
    links: z
      .array(z.strictObject({ field: z.string(), targetEntity: z.string(), targetField: z.literal('id') }))
      .optional(),
  })
  .meta({ id: 'ProvenanceEntity' })
export const EntityList = z.strictObject({ items: z.array(EntityDescriptor) })

/** A record by the names of its fields; unknown values are null. */
export const Item = z.record(z.string(), z.unknown())

/** Pages of entities (domain-reference 14). */
export const entitySizes: Sizes = { usual: 50, largest: 200, beyond: 'largest' }

export const EntityQuery = z.strictObject({
  q: z.string().optional().describe('text in any field, in any case'),
  filterField: z.string().optional().describe('name of the field that filterValue is of'),
  filterValue: withBlank(z.string())
    .optional()
    .describe('value that the field must have; needed beside filterField, blank for a blank one'),
  sortField: z.string().optional().describe('default: id'),
  sortOrder: z.enum(['asc', 'desc']).optional().describe('default: asc'),
  ...pageQueryOf(entitySizes),
})
export type EntityQuery = z.output<typeof EntityQuery>

export const EntityPage = z.strictObject({
  entity: EntityDescriptor,
  items: z.array(Item),
  page: z.int().min(1),
  pageSize: z.int().min(1).describe('most items of a page'),
  total: z.int().min(0),
  hasNext: z.boolean(),
  totalIsLowerBound: z.literal(true).optional(),
})

export const SqlSchema = z.strictObject({
  items: z.array(
    z.strictObject({
      name: z.string(),
      columns: z.array(z.strictObject({ name: z.string(), type: z.string() })),
    }),
  ),
})

const Scalar = z.union([z.string(), exact(z.number()), z.boolean(), z.null()])

/** A statement and the values of its placeholders. */
export const Statement = z
  .strictObject({
    statement: z.string().describe('one SELECT on one entity, with ? for each value; at most 64 KiB'),
    params: z
      .array(z.union([Scalar, z.array(Scalar).describe('for = ANY(?)')]))
      .optional()
      .describe('the values in order, integers beyond 2^53-1 as texts; at most 1,000'),
  })
  .meta({ id: 'ProvenanceStatement' })
export type Statement = z.output<typeof Statement>

export const Rows = z.array(z.record(z.string(), z.unknown()))
export const Explained = z.strictObject({
  entity: z.string(),
  statement: z.string(),
  plan: z.record(z.string(), z.unknown()),
})

export const directions = ['prior', 'downstream', 'both'] as const

export const LineageQuery = z.strictObject({
  direction: z.enum(directions).optional().describe('default: both'),
  depth: wholeNumber.optional().meta({ description: '1 to 5, default 2' }),
  maxNodes: wholeNumber.optional().meta({ description: '1 to 500, default 200' }),
  workflowVersionId: MadeId.optional().describe('of an activity whose id several versions share'),
})

export const Lineage = z
  .strictObject({
    root: z.string(),
    nodes: z.array(
      z.strictObject({
        key: z.string(),
        entity: z.string(),
        id: z.string(),
        label: z.string(),
        record: Item,
      }),
    ),
    edges: z.array(z.strictObject({ source: z.string(), target: z.string(), label: z.string() })),
    truncated: z.boolean(),
  })
  .meta({ id: 'Lineage' })

export const ClosureQuery = z.strictObject({
  direction: z
    .enum(['prior', 'downstream'])
    .optional()
    .describe('ancestors (prior, the default) or descendants'),
  workflowVersionId: MadeId.optional().describe('of an activity whose id several versions share'),
})
