import { firstProblems, Refusal, unacceptable, type Problem } from '../../refusal.ts'
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

function read(body: Body, { name, namespace }: Override): { reading: Reading; form: Checked<unknown> } {
  const override = {
    ...(name === undefined ? {} : { name }),
    ...(namespace === undefined ? {} : { namespace }),
  }
  switch (formOf(body)) {
    case 'pegasus':
      throw unacceptable([
        {
          path: 'pegasus',
          message:
            'this is a Pegasus abstract workflow, which is not read here; send the authoring form ' +
            'or a WfCommons instance (WfFormat 1.5, 1.6)',
        },
      ])
    case 'wfformat': {
      const form = checked('wfformat', body)
      return { form, reading: form.value === undefined ? nothing : readWfFormat(form.value, override) }
    }
    case 'normalised': {
      const form = checked('normalised', namespace === undefined ? body : { ...body, namespace })
      return { form, reading: form.value === undefined ? nothing : readNormalised(form.value, override) }
    }
    case 'authoring': {
      const form = checked('authoring', overridden(body, override))
      return {
        form,
        reading: readAuthoring(
          form.value === undefined ? salvageDraft(overridden(body, override)) : draftOf(form.value),
        ),
      }
    }
  }
}

const nothing: Reading = { problems: [], warnings: [], workflow: undefined, id: undefined }

/** The document with the name and namespace from the request. */
const overridden = (body: Body, { name, namespace }: { name?: string; namespace?: string }): Body => {
  const key = (fields: Body, wanted: string): string =>
    Object.keys(fields).find((given) => given.toLowerCase() === wanted) ?? wanted
  if (name !== undefined) body[key(body, 'name')] = name
  const spec = body[key(body, 'spec')]
  if (namespace !== undefined && typeof spec === 'object' && spec !== null)
    (spec as Body)[key(spec as Body, 'namespace')] = namespace
  return body
}
