import { z } from 'zod'
import {
  AuthoringActivity,
  AuthoringDataDependency,
  AuthoringSpec,
  RawSpec,
  type AuthoringDocument,
} from './schemas.ts'

/**
 * An authoring document with parts missing where their form was wrong. Those problems have been
 * reported already.
 */
export interface AuthoringDraft {
  name: string | undefined
  namespace: string | undefined
  raw: RawSpec
  /** Undefined where the list itself is not readable. */
  activities: Partial<AuthoringActivity>[] | undefined
  dataDependencies: Partial<AuthoringDataDependency>[]
}

export const draftOf = ({
  name,
  spec: { namespace, activities, dataDependencies, ...raw },
}: AuthoringDocument): AuthoringDraft => ({
  name,
  namespace,
  raw,
  activities,
  dataDependencies: dataDependencies ?? [],
})

/**
 * The most likely meaning of a value of wrong form, so that no present member is reported as
 * missing.
 */
function lenient(schema: z.core.$ZodType, value: unknown): unknown {
  if (schema instanceof z.ZodOptional)
    return value === undefined ? undefined : lenient(schema.unwrap(), value)
  const result = z.safeParse(schema, value)
  if (result.success) return result.data
  if (schema instanceof z.ZodObject) return salvage(schema, value)
  if (schema instanceof z.ZodArray)
    return Array.isArray(value) ? value.map((item) => lenient(schema.element, item)) : undefined
  if (schema instanceof z.ZodString) return typeof value === 'string' ? value : JSON.stringify(value)
  return undefined
}

function salvage<S extends z.ZodObject>(schema: S, value: unknown): Partial<z.output<S>> {
  const kept: Record<string, unknown> = {}
  if (typeof value !== 'object' || value === null) return kept as Partial<z.output<S>>
  const shape: Record<string, z.core.$ZodType> = schema.shape
  for (const [key, member] of Object.entries(shape)) {
    const read = lenient(member, (value as Record<string, unknown>)[key])
    if (read !== undefined) kept[key] = read
  }
  return kept as Partial<z.output<S>>
}

/**
 * The readable parts of a document with a wrong form, so that its other faults are found at the
 * same time.
 */
export function salvageDraft(body: Record<string, unknown>): AuthoringDraft {
  const spec =
    typeof body['spec'] === 'object' && body['spec'] !== null ? (body['spec'] as Record<string, unknown>) : {}
  const list = (value: unknown): unknown[] | undefined => (Array.isArray(value) ? value : undefined)
  return {
    name: typeof body['name'] === 'string' ? body['name'] : undefined,
    namespace: AuthoringSpec.shape.namespace.safeParse(spec['namespace']).data,
    raw: salvage(RawSpec, spec),
    activities: list(spec['activities'])?.map((activity) => salvage(AuthoringActivity, activity)),
    dataDependencies:
      list(spec['dataDependencies'])?.map((dependency) => salvage(AuthoringDataDependency, dependency)) ?? [],
  }
}
