import { isFields, type Fields } from '../json-object.ts'

/** The limit of a schema's name: generated clients use it as a file name. */
const longestName = 36

const pascal = (text: string): string =>
  text
    .split(/[^A-Za-z0-9]+/)
    .filter((word) => word !== '')
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join('')

const singular = (text: string): string =>
  /ies$/.test(text)
    ? text.replace(/ies$/, 'y')
    : /(sses|xes|ches)$/.test(text)
      ? text.slice(0, -2)
      : /[^s]s$/.test(text)
        ? text.slice(0, -1)
        : `${text}Item`

/**
 * The name of an operation's answer, by the operation's id: `getRun` a Run, `listRuns` a RunList.
 */
const answerName = (operationId: string): string => {
  const [, verb = '', rest = ''] = /^([a-z]+)(.*)$/.exec(operationId) ?? []
  if (verb === 'get' && rest !== '') return rest
  if (verb === 'list' && rest !== '') return `${singular(rest)}List`
  return `${pascal(operationId)}Answer`
}

/** Members that describe the use of a value in one place. They stay there, beside the reference. */
const ofPlace: readonly string[] = ['description', 'default', 'examples', 'example', 'deprecated', 'readOnly']

const units: readonly [RegExp, string][] = [
  [/BytesPerSecond$/, 'bytes per second'],
  [/BitsPerSecond$/, 'bits per second'],
  [/[Pp]erSecond$/, 'per second'],
  [/PerByte$/, 'per byte'],
  [/Seconds$/, 'seconds'],
  [/(^b|B)ytes$/, 'bytes'],
  [/Ms$/, 'milliseconds'],
]

/**
 * Names every body and answer of a document, and the objects and enumerations inside of them, so
 * that generated clients have named types. Equal texts get one name. The document is changed in
 * place.
 */
export const nameSchemas = (paths: Record<string, Fields>, schemas: Record<string, Fields>): void => {
  const textOf = (schema: Fields): string =>
    JSON.stringify(Object.fromEntries(Object.entries(schema).filter(([key]) => !ofPlace.includes(key))))
  const names = new Map<string, string>()

  /** A free name: shortened from the front where it is too long, numbered where it is taken. */
  const freeName = (wished: string): string => {
    let name = wished
    while (name.length > longestName - 2 && /^[A-Z][a-z0-9]*[A-Z]/.test(name))
      name = name.replace(/^[A-Z][a-z0-9]*(?=[A-Z])/, '')
    name = name.slice(0, longestName - 2)
    for (let n = 2; ; n += 1) {
      const numbered = n === 2 ? name : `${name}${String(n - 1)}`
      if (schemas[numbered] === undefined) return numbered
    }
  }

  const hoist = (schema: Fields, wished: string): Fields => {
    const text = textOf(schema)
    let name = names.get(text)
    if (name === undefined) {
      name = freeName(wished)
      names.set(text, name)
      schemas[name] = JSON.parse(text) as Fields
    }
    return {
      $ref: `#/components/schemas/${name}`,
      ...Object.fromEntries(ofPlace.filter((key) => key in schema).map((key) => [key, schema[key]])),
    }
  }

  const isFree = (schema: Fields): boolean =>
    schema['type'] === 'object' &&
    schema['properties'] === undefined &&
    isFields(schema['additionalProperties'])
  const isNamed = (schema: Fields): boolean =>
    (schema['type'] === 'object' && (schema['properties'] !== undefined || isFree(schema))) ||
    (schema['type'] === 'string' && (Array.isArray(schema['enum']) || schema['const'] !== undefined))

  const freeNameOf = (schema: Fields, name: string): string =>
    JSON.stringify(schema['additionalProperties']).includes('/JsonValue"') &&
    JSON.stringify(schema['additionalProperties']).length < 50
      ? 'JsonObject'
      : name

  /**
   * The same schema, with names for its inner schemas; `name` is the name that it would have
   * itself.
   */
  const inside = (schema: Fields, name: string): Fields => {
    const result: Fields = { ...schema }
    if (isFields(schema['properties']))
      result['properties'] = Object.fromEntries(
        Object.entries(schema['properties']).map(([key, value]) => [
          key,
          isFields(value) ? withUnit(key, outside(value, name + pascal(key))) : value,
        ]),
      )
    if (isFields(schema['items'])) result['items'] = outside(schema['items'], singular(name))
    if (isFields(schema['additionalProperties']))
      result['additionalProperties'] = outside(schema['additionalProperties'], `${name}Value`)
    for (const key of ['anyOf', 'oneOf', 'allOf'])
      if (Array.isArray(schema[key])) {
        const options = schema[key] as unknown[]
        const several = options.filter((one) => isFields(one) && isNamed(one)).length > 1
        result[key] = options.map((one, i) =>
          isFields(one) ? outside(one, several ? `${name}Form${String(i + 1)}` : name) : one,
        )
      }
    return result
  }
  const withUnit = (key: string, schema: Fields): Fields => {
    const unit = units.find(([form]) => form.test(key))?.[1]
    return {
      ...schema,
      // Counters that rows hold as plain numbers. Cores of a trace may be fractions.
      ...(schema['type'] === 'number' && /(^attempt|^sequence|^generation|(?<!core)Count)$/.test(key)
        ? { type: 'integer' }
        : {}),
      ...(unit === undefined || schema['description'] !== undefined ? {} : { description: `In ${unit}` }),
    }
  }
  const outside = (schema: Fields, name: string): Fields => {
    if ('$ref' in schema) return schema
    const named = inside(schema, name)
    return isNamed(named) ? hoist(named, isFree(named) ? freeNameOf(named, name) : name) : named
  }

  for (const [name, schema] of Object.entries(schemas)) {
    schemas[name] = inside(schema, name)
    names.set(textOf(schemas[name]), name)
  }
  const named = (schema: Fields, name: string): Fields => {
    if ('$ref' in schema) return schema
    return hoist(inside(schema, name), name)
  }
  for (const [operation, content] of contents(paths)) {
    const name =
      content === operation['requestBody']
        ? `${pascal(operation['operationId'] as string)}Body`
        : answerName(operation['operationId'] as string)
    for (const [type, media] of Object.entries((content['content'] ?? {}) as Record<string, Fields>))
      if (/^application\/(json|yaml)$/.test(type) && isFields(media['schema']))
        media['schema'] = named(media['schema'], name)
  }
  nameStreams(paths, schemas)
}

/**
 * Operations with each of their bodies and answers. Records come first, because they name the rest.
 */
const contents = (paths: Record<string, Fields>): [operation: Fields, content: Fields][] => {
  const operations = Object.values(paths).flatMap((item) =>
    Object.entries(item).flatMap(([method, operation]) =>
      ['get', 'post', 'put', 'delete'].includes(method) ? [operation as Fields] : [],
    ),
  )
  const isRead = (operation: Fields): boolean => (operation['operationId'] as string).startsWith('get')
  return [...operations.filter(isRead), ...operations.filter((one) => !isRead(one))].flatMap((operation) =>
    [...Object.values(operation['responses'] as Fields), operation['requestBody']]
      .filter(isFields)
      .map((content): [Fields, Fields] => [operation, content]),
  )
}

/** A stream of events has the items of the list at the same path, or the lines of its text. */
const nameStreams = (paths: Record<string, Fields>, schemas: Record<string, Fields>): void => {
  for (const [, content] of contents(paths)) {
    const media = content['content'] as Record<string, Fields> | undefined
    const stream = media?.['text/event-stream']
    const list = media?.['application/json']?.['schema']
    if (stream !== undefined && media?.['text/plain'] !== undefined)
      stream['schema'] = {
        type: 'string',
        description: 'Server-sent events (`text/event-stream`); the `data` of each are lines of the text',
        contentMediaType: 'text/plain',
        contentSchema: { type: 'string' },
      }
    if (stream === undefined || !isFields(list)) continue
    const schema = schemas[String(list['$ref']).split('/').at(-1) ?? '']
    const items = (schema?.['properties'] as Record<string, Fields> | undefined)?.['items'] ?? schema
    if (isFields(items?.['items']))
      stream['schema'] = {
        type: 'string',
        description: 'Server-sent events (`text/event-stream`); the `data` of each is one item of the list',
        contentMediaType: 'application/json',
        contentSchema: items['items'],
      }
  }
}
