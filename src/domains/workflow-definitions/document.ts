import { firstProblems, Refusal, unacceptable, type Problem, unacceptableAt } from '../../refusal.ts'
import { checkDocument } from '../../http/check.ts'
import { createShapes } from '../../http/keys.ts'
import type { z } from 'zod'
import { readAuthoring, type NewWorkflow, type Reading } from './authoring.ts'
import { draftOf, salvageDraft } from './draft.ts'
import { readNormalised } from './normalised.ts'
import { AuthoringDocument, NormalisedDocument, WfFormatDocument } from './schemas.ts'
import { readWfFormat } from './wfformat.ts'

type Body = Record<string, unknown>

/**
 * The form of a document, by keys that only this form has. A document without such keys counts as
 * the authoring form.
 */
export type Form = 'authoring' | 'wfformat' | 'pegasus' | 'normalised'
export function formOf(body: Body): Form {
  const has = (key: string): boolean => Object.keys(body).some((name) => name.toLowerCase() === key)
  if (has('pegasus') || has('x-pegasus')) return 'pegasus'
  if (has('workflow') && (has('schemaversion') || !has('spec'))) return 'wfformat'
  if (!has('spec') && (has('version') || has('activitytypes'))) return 'normalised'
  return 'authoring'
}

const schemas = { authoring: AuthoringDocument, wfformat: WfFormatDocument, normalised: NormalisedDocument }
const shapeOf = createShapes()
const shapes = {
  authoring: shapeOf(AuthoringDocument),
  wfformat: shapeOf(WfFormatDocument),
  normalised: shapeOf(NormalisedDocument),
}

/** The result of checking a document against the schema of its form. */
interface Checked<T> {
  value: T | undefined
  problems: Problem[]
  /** Whether one of the problems concerns syntax (400) instead of content (422). */
  invalid: boolean
}

const checked = <F extends keyof typeof schemas>(
  form: F,
  body: Body,
): Checked<z.output<(typeof schemas)[F]>> => {
  try {
    return {
      value: checkDocument(schemas[form], shapes[form], body) as z.output<(typeof schemas)[F]>,
      problems: [],
      invalid: false,
    }
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    return { value: undefined, problems: error.details, invalid: error.code === 'invalid' }
  }
}

export interface Override {
  name?: string | undefined
  namespace?: string | undefined
}

/**
 * The workflow in a document of any form. `taken` decides whether the document's id exists already,
 * so that this problem is reported with the others.
 * @throws Refusal with every problem of form and content together, 400 where one is of form
 */
export async function readWorkflow(
  body: Body,
  override: Override,
  taken: (id: string) => Promise<boolean>,
): Promise<{ workflow: NewWorkflow; warnings: Problem[] }> {
  const { reading, form } = read(body, override)
  const reported = new Set(form.problems.map(({ path }) => path))
  const details = [...form.problems, ...reading.problems.filter(({ path }) => !reported.has(path))]
  if (reading.id !== undefined && reading.id !== '' && (await taken(reading.id))) {
    details.push({
      path: 'name',
      message: `${JSON.stringify(reading.id)} is taken by another workflow; choose another name (import takes ?name=)`,
    })
  }
  const { workflow, warnings } = reading
  if (details.length === 0 && workflow !== undefined) return { workflow, warnings }
  const refusal = unacceptable(firstProblems(details, bound))
  throw form.invalid ? new Refusal('invalid', refusal.message, { details: refusal.details }) : refusal
}

/**
 * Further problems of a document that is refused already for a value that no schema sees (a number
 * out of range, a NUL).
 */
export async function furtherProblems(
  document: unknown,
  taken: (id: string) => Promise<boolean>,
): Promise<Problem[]> {
  if (typeof document !== 'object' || document === null || Array.isArray(document)) return []
  try {
    await readWorkflow(document as Body, {}, taken)
    return []
  } catch (error) {
    if (error instanceof Refusal) return error.details
    throw error
  }
}

/** The limit of problems in one answer. */
const bound = 1_000

function read(body: Body, override: Override): { reading: Reading; form: Checked<unknown> } {
  switch (formOf(body)) {
    case 'pegasus':
      throw unacceptableAt(
        'pegasus',
        'this is a Pegasus abstract workflow, which is not read here; send the authoring form ' +
          'or a WfCommons instance (WfFormat 1.5, 1.6)',
      )
    case 'wfformat': {
      // This form has no namespace.
      const form = checked('wfformat', renamed(body, { name: override.name }))
      return { form, reading: form.value === undefined ? nothing : readWfFormat(form.value, override) }
    }
    case 'normalised': {
      const form = checked('normalised', renamed(body, override))
      return {
        form,
        reading: form.value === undefined ? nothing : readNormalised(form.value, override.name !== undefined),
      }
    }
    case 'authoring': {
      renamed(body, { name: override.name })
      const spec = body[keyOf(body, 'spec')]
      if (typeof spec === 'object' && spec !== null) renamed(spec as Body, { namespace: override.namespace })
      const form = checked('authoring', body)
      return {
        form,
        reading: readAuthoring(form.value === undefined ? salvageDraft(body) : draftOf(form.value)),
      }
    }
  }
}

const nothing: Reading = { problems: [], warnings: [], workflow: undefined, id: undefined }

/** The key as the document writes it; `wanted` itself where it does not. */
const keyOf = (fields: Body, wanted: string): string =>
  Object.keys(fields).find((given) => given.toLowerCase() === wanted) ?? wanted

/** The object with the members from the request in place of its own. */
const renamed = (fields: Body, members: Override): Body => {
  for (const [member, value] of Object.entries(members))
    if (value !== undefined) fields[keyOf(fields, member)] = value
  return fields
}
