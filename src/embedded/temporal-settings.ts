import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import { z } from 'zod'

/**
 * In the order of Temporal's `IndexedValueType` (temporal/api/enums/v1/common.proto), which counts
 * from 1.
 */
export const searchAttributeTypes = [
  'Text',
  'Keyword',
  'Int',
  'Double',
  'Bool',
  'Datetime',
  'KeywordList',
] as const

const dynamicConfig = z.record(z.string(), z.array(z.strictObject({ value: z.json() })).length(1))
const namespace = z.strictObject({
  retention: z.string().regex(/^\d+h$/),
  searchAttributes: z.record(z.string(), z.enum(searchAttributeTypes)),
})

export interface TemporalSettings {
  /** Key of the dynamic configuration to its value. */
  dynamic: Readonly<Record<string, unknown>>
  /** How long closed histories are kept, e.g. `168h`. */
  retention: string
  searchAttributes: Readonly<Record<string, (typeof searchAttributeTypes)[number]>>
}

/** The settings in `temporal-config/`. @throws Error when a file there has an unexpected form */
export const readTemporalSettings = (): TemporalSettings => {
  const read = (name: string): unknown =>
    parse(readFileSync(new URL(`../../temporal-config/${name}`, import.meta.url), 'utf8'))
  const { retention, searchAttributes } = namespace.parse(read('namespace.yaml'))
  const values = Object.entries(dynamicConfig.parse(read('dynamicconfig.yaml'))).map(([key, [only]]) => [
    key,
    only?.value,
  ])
  return { dynamic: Object.fromEntries(values) as Record<string, unknown>, retention, searchAttributes }
}
