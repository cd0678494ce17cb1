import { Ajv2020 } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import type { ValidateFunction } from 'ajv'
import type { Answered } from '../../src/http/options.ts'

type Json = Record<string, unknown>

const pointer = (part: string): string => part.replaceAll('~', '~0').replaceAll('/', '~1')

/** Content types without their parameters, as in the document. */
const bare = (contentType: string): string => (contentType.split(';')[0] ?? '').trim().toLowerCase()

/**
 * Compares answers with the API's document. For an answer that the document does not allow, `check`
 * throws a text with route, status and every deviation. Answers of unknown paths (`template`
 * undefined) must have the common error form.
 */
export const createConformance = (document: object) => {
  // A test of the document says whether its schemas are valid; ajv would look again in each service.
  const ajv = new Ajv2020({ strict: false, allErrors: true, validateFormats: true, validateSchema: false })
  formats.default(ajv)
  ajv.addSchema({ ...document, $id: 'api' })
  const compiled = new Map<string, ValidateFunction>()
  const validator = (ref: string): ValidateFunction => {
    let validate = compiled.get(ref)
    if (validate === undefined) compiled.set(ref, (validate = ajv.compile({ $ref: `api#${ref}` })))
    return validate
  }
  const at = (ref: string): unknown =>
    ref
      .split('/')
      .slice(1)
      .reduce<unknown>(
        (value, part) => (value as Json | undefined)?.[part.replaceAll('~1', '/').replaceAll('~0', '~')],
        document,
      )

  const demand = (where: string, ref: string, body: string): void => {
    const validate = validator(ref)
    let value: unknown
    try {
      value = JSON.parse(body)
    } catch {
      throw new Error(`${where}: the body is not JSON: ${body.slice(0, 200)}`)
    }
    if (validate(value)) return
    const faults = (validate.errors ?? []).map(
      (error) =>
        `${error.instancePath === '' ? '/' : error.instancePath} ${error.message ?? ''} ` +
        JSON.stringify(error.params),
    )
    throw new Error(
      `${where}: the body does not conform to the document\n  ${faults.slice(0, 20).join('\n  ')}\n ` +
        ` ${body.slice(0, 400)}`,
    )
  }

  return {
    check(
      method: string,
      template: string | undefined,
      status: number,
      contentType: string | undefined,
      body: string | undefined,
    ): void {
      const where = `${method} ${template ?? '(unknown path)'} ${status}`
      if (template === undefined) {
        if (body === undefined || status < 400) return
        return demand(
          where,
          contentType !== undefined && bare(contentType) === 'application/problem+json'
            ? '/components/schemas/Problem'
            : '/components/schemas/Error',
          body,
        )
      }
      const operation = `/paths/${pointer(template)}/${method.toLowerCase()}`
      if (at(operation) === undefined) throw new Error(`${where}: the document has no such operation`)
      let response = `${operation}/responses/${status}`
      const declared = at(response) as Json | undefined
      if (declared === undefined)
        throw new Error(
          `${where}: the document does not have this status; it has ` +
            Object.keys(at(`${operation}/responses`) as Json).join(', '),
        )
      if (typeof declared['$ref'] === 'string') response = declared['$ref'].slice(1)
      const content = at(`${response}/content`) as Json | undefined
      if (content === undefined) {
        if (body !== undefined && body !== '')
          throw new Error(`${where}: an answer without content has a body: ${body.slice(0, 200)}`)
        return
      }
      if (body === undefined && contentType === undefined) return
      const type = bare(contentType ?? '')
      if (content[type] === undefined)
        throw new Error(
          `${where}: content type ${JSON.stringify(type)} is not declared; declared are ` +
            Object.keys(content).join(', '),
        )
      if (body !== undefined && type.endsWith('json'))
        demand(where, `${response}/content/${pointer(type)}/schema`, body)
    },
  }
}

export type Conformance = ReturnType<typeof createConformance>

/**
 * Checks every answer of a service against the service's own document. `raise` throws the
 * deviations found since its last call.
 */
export const recordConformance = () => {
  let conformance: Conformance | undefined
  /** Answers before the document was read, such as the one that holds it. */
  const early: Answered[] = []
  const faults: string[] = []
  const onAnswer = (answer: Answered): void => {
    if (conformance === undefined) return void early.push(answer)
    try {
      conformance.check(answer.method, answer.template, answer.status, answer.contentType, answer.body)
    } catch (error) {
      faults.push((error as Error).message)
    }
  }
  return {
    onAnswer,
    begin(document: object): void {
      conformance = createConformance(document)
      early.splice(0).forEach(onAnswer)
    },
    raise(): void {
      if (faults.length > 0) throw new Error(faults.splice(0).join('\n'))
    },
  }
}
