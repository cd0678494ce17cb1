import { z } from 'zod'
import { isFields } from '../json-object.ts'
import { pathLengths } from './call.ts'
import { nameSchemas } from './openapi-names.ts'
import { typesToChooseFrom, type Method, type Route } from './route.ts'

type Json = Record<string, unknown>

/** The members of OpenAPI 3.1 that this program reads. */
export interface OpenApi {
  openapi: '3.1.0'
  info: Json
  servers: Json[]
  security: Json[]
  tags: Json[]
  paths: Record<string, Json>
  components: { schemas: Record<string, Json>; responses: Json; securitySchemes: Json; headers: Json }
}

/**
 * Refusals that any request may get: for a query value, the peer or Host, the size of its headers,
 * a fault.
 */
const anyRefusals = [400, 403, 431, 500]

/** Facts of a route that the document needs beside its fields. */
interface RouteContext {
  /**
   * Routes below the prefix may answer 503 without the database. The two routes outside of it do
   * not query it.
   */
  isApi: boolean
  /** True where a GET of the same path exists. If-Match is compared with its ETag. */
  hasRead: boolean
}

/** Reads of a record have an ETag; streams and WebSockets have none. */
const hasTag = (route: Route): boolean =>
  route.method === 'GET' && route.streams !== true && route.socket === undefined

/** The refusals that the kernel and the handler of `route` can give, in order. */
const refusalsOf = (route: Route, method: Method | 'HEAD', { isApi, hasRead }: RouteContext): number[] => {
  const reads = route.method === 'GET'
  const changes = (!reads && route.reads !== true) || route.socket !== undefined
  const isPublic = route.public === true || (route.public === 'get' && method === 'GET')
  const statuses = [
    ...anyRefusals,
    ...(isPublic ? [] : [401]),
    ...(/\{\w+\}/.test(route.path) ? [404] : []),
    ...(typesToChooseFrom(route).length > 0 ? [406] : []),
    // For a request under an Idempotency-Key whose first request is in progress, or had another
    // body.
    ...(route.method === 'POST' ? [409, 422] : []),
    ...(hasTag(route) || (hasRead && !reads && route.method !== 'POST') ? [412] : []),
    ...(route.body === undefined ? [] : [422]),
    ...(route.body === undefined && route.upload === undefined ? [] : [408, 413, 415]),
    ...(!changes || route.whileActivated === true ? [] : [423]),
    ...(route.socket === undefined ? [] : [426]),
    ...(isApi ? [503] : []),
    ...(route.refuses ?? []),
    ...(route.alsoStatus ?? []).filter((status) => status >= 400),
  ]
  return [...new Set(statuses)].toSorted((a, b) => a - b)
}

const meanings: Record<number, string> = {
  400: 'Malformed: syntax, wrong JSON type, unknown key, bad path or query value',
  401: 'No valid bearer token',
  403: 'Peer, Host or Origin is not allowed',
  404: 'No such record or path',
  408: 'The body did not come in time',
  406: 'Accept excludes every media type that can be sent',
  409: 'In conflict with the state of the record',
  412: 'If-Match names another version of the record, or If-None-Match the present one',
  413: 'The body is too large',
  415: 'The body is of a media type that is not read here; documents are JSON or YAML in UTF-8',
  416: 'The range lies outside of the content',
  422: 'Well-formed but not acceptable: missing, blank, enum, range, reference, duplicate, cycle',
  423: 'A read-only snapshot is activated',
  426: 'The path is a WebSocket and the request does not ask for one',
  431: 'Address and headers together are larger than 16 KiB',
  500: 'Fault of the service',
  503: '`unavailable`: away at the moment; `not_built`: not part of this version',
}

const successTexts: Record<number, string> = {
  101: 'The connection is a WebSocket from here on',
  200: 'OK',
  201: 'Created',
  202: 'Accepted',
  204: 'No content',
  206: 'Part of the content',
  304: 'Not modified',
}

const anyJson = 'JsonValue'
const anyJsonSchema: Json = {
  description: 'Any JSON value',
  type: ['object', 'array', 'string', 'number', 'boolean', 'null'],
}

/** A text that may be left out: its blank form counts as that. */
const blankToo = ({ minLength: _, ...member }: Json): Json => {
  const words = member['const'] === undefined ? member['enum'] : [member['const']]
  if (!Array.isArray(words) || !words.every((word) => typeof word === 'string')) return member
  const { const: _const, ...others } = member
  return { ...others, enum: [...words, ''] }
}

const mapped = (members: unknown, to: (name: string, member: unknown) => unknown): Json =>
  Object.fromEntries(Object.entries(members as Json).map(([name, member]) => [name, to(name, member)]))

const innerSchemas = new Set(['items', 'additionalProperties', 'anyOf', 'oneOf', 'allOf'])

/** The schema of a document that is sent: its texts may be blank where they may be left out. */
const withBlanks = (schema: unknown): unknown => {
  if (Array.isArray(schema)) return schema.map(withBlanks)
  if (!isFields(schema)) return schema
  const required = (schema['required'] ?? []) as readonly string[]
  return mapped(schema, (key, value) => {
    if (key === '$defs') return mapped(value, (_name, definition) => withBlanks(definition))
    if (key !== 'properties') return innerSchemas.has(key) ? withBlanks(value) : value
    return mapped(value, (name, member) =>
      required.includes(name) ? withBlanks(member) : blankToo(withBlanks(member) as Json),
    )
  })
}

/** The JSON Schema of a zod schema; values of any type refer to the component `JsonValue`. */
const schemaOf = (schema: z.ZodType, io: 'input' | 'output'): Json =>
  z.toJSONSchema(schema, {
    io,
    target: 'draft-2020-12',
    unrepresentable: 'any',
    reused: 'inline',
    override: ({ zodSchema, jsonSchema }) => {
      if (zodSchema._zod.def.type === 'unknown' || zodSchema._zod.def.type === 'any')
        jsonSchema.$ref = `#/$defs/${anyJson}`
    },
  })

/**
 * Collects named schemas of both directions. Where a request's form differs from the answer's, the
 * request's schema is named `<name>Input`.
 */
class Components {
  readonly #schemas: Record<'input' | 'output', Map<string, Json>> = { input: new Map(), output: new Map() }
  readonly #uses: { place: Json; io: 'input' | 'output' }[] = []

  /** The inline schema of a document that is sent. */
  addBody(schema: z.ZodType): Json {
    return this.#take(schema, 'input', withBlanks(schemaOf(schema, 'input')) as Json)
  }

  /** The inline schema. `finish` corrects its references. */
  add(schema: z.ZodType, io: 'input' | 'output'): Json {
    return this.#take(schema, io, schemaOf(schema, io))
  }

  #take(schema: z.ZodType, io: 'input' | 'output', json: Json): Json {
    const { $schema: _dialect, $defs, ...rest } = json
    for (const [name, definition] of Object.entries(($defs ?? {}) as Record<string, Json>))
      this.#keep(io, name, definition)
    const id = (schema.meta() as { id?: string } | undefined)?.id
    if (id !== undefined && !('$ref' in rest)) {
      const { id: _id, ...definition } = rest
      this.#keep(io, id, definition)
      const place = { $ref: `#/$defs/${id}` }
      this.#uses.push({ place, io })
      return place
    }
    this.#uses.push({ place: rest, io })
    return rest
  }

  #keep(io: 'input' | 'output', name: string, definition: Json): void {
    const { id: _id, ...rest } = definition
    const known = this.#schemas[io].get(name)
    if (known !== undefined && JSON.stringify(known) !== JSON.stringify(rest))
      throw new Error(`two different schemas are called ${name}; give one another id`)
    this.#schemas[io].set(name, rest)
  }

  /** All named schemas under their final names. */
  finish(): Record<string, Json> {
    const { input, output } = this.#schemas
    const differing = new Set(
      [...input.keys()].filter(
        (name) => output.has(name) && JSON.stringify(input.get(name)) !== JSON.stringify(output.get(name)),
      ),
    )
    // A schema that refers to a differing one differs too, although its text is equal.
    for (let before = -1; before !== differing.size;) {
      before = differing.size
      for (const [name, definition] of input) {
        const text = JSON.stringify(definition)
        if (output.has(name) && [...differing].some((other) => text.includes(`"#/$defs/${other}"`)))
          differing.add(name)
      }
    }
    const rename = (value: unknown, io: 'input' | 'output'): unknown => {
      if (Array.isArray(value)) return value.map((item) => rename(item, io))
      if (typeof value !== 'object' || value === null) return value
      return Object.fromEntries(
        Object.entries(value).map(([key, item]) => {
          const name =
            key === '$ref' && typeof item === 'string' ? /^#\/\$defs\/(.+)$/.exec(item)?.[1] : undefined
          return name === undefined
            ? [key, rename(item, io)]
            : [key, `#/components/schemas/${io === 'input' && differing.has(name) ? `${name}Input` : name}`]
        }),
      )
    }
    for (const { place, io } of this.#uses) Object.assign(place, rename(place, io))
    const schemas: Record<string, Json> = {}
    for (const [name, definition] of output) schemas[name] = rename(definition, 'output') as Json
    for (const [name, definition] of input)
      schemas[differing.has(name) ? `${name}Input` : name] = rename(definition, 'input') as Json
    return Object.fromEntries(Object.entries(schemas).toSorted(([a], [b]) => (a < b ? -1 : 1)))
  }
}

const errorSchema: Json = {
  type: 'object',
  required: ['error', 'code', 'details'],
  properties: {
    error: { type: 'string', description: 'What is wrong, in a sentence' },
    code: { type: 'string', description: 'The kind of refusal, one word' },
    details: {
      type: 'array',
      items: {
        type: 'object',
        required: ['path', 'message'],
        properties: { path: { type: 'string' }, message: { type: 'string' } },
        additionalProperties: false,
      },
    },
  },
  additionalProperties: true,
  example: {
    error: 'environment.name: must not be blank (and 1 more, see details)',
    code: 'unacceptable',
    details: [
      { path: 'environment.name', message: 'must not be blank' },
      { path: 'runtimes.0.mode', message: 'must be one of execution, simulation (got "dry")' },
    ],
  },
}

const problemSchema: Json = {
  allOf: [
    { $ref: '#/components/schemas/Error' },
    {
      type: 'object',
      required: ['type', 'title', 'status', 'detail', 'instance'],
      properties: {
        type: { type: 'string' },
        title: { type: 'string' },
        status: { type: 'integer', description: 'of the answer, as in HTTP' },
        detail: { type: 'string' },
        instance: { type: 'string' },
      },
    },
  ],
}

const responseName = (status: number): string => `Refused${status}`

const errorResponse = (status: number): Json => ({
  description: meanings[status] ?? 'Refused',
  ...(status === 401
    ? { headers: { 'WWW-Authenticate': { schema: { type: 'string', const: 'Bearer' } } } }
    : {}),
  ...(status === 503 ? { headers: { 'Retry-After': { schema: { type: 'string' } } } } : {}),
  content: {
    'application/json': { schema: { $ref: '#/components/schemas/Error' } },
    'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } },
  },
})

/** A query value is text. Clients see a value of digits alone as an integer. */
const wholeNumber = (schema: Json): Json => {
  const [, sign, first, most] =
    /^\^(\[\+-\]\?)?(\[1-9\])?\\d\{[01],(\d+)\}\$$/.exec(String(schema['pattern'])) ?? []
  if (most === undefined) return schema
  const { pattern: _pattern, ...rest } = schema
  const largest = Math.min(10 ** (Number(most) + (first === undefined ? 0 : 1)) - 1, Number.MAX_SAFE_INTEGER)
  return {
    ...rest,
    type: 'integer',
    minimum: sign === undefined ? (first === undefined ? 0 : 1) : -largest,
    maximum: largest,
  }
}

const pathParameters = (
  { path }: Route,
  describe: ((path: string, name: string) => string | undefined) | undefined,
): Json[] =>
  [...path.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => {
    const description = describe?.(path, name)
    return {
      name,
      in: 'path',
      required: true,
      ...(description === undefined ? {} : { description }),
      schema: {
        type: 'string',
        minLength: 1,
        maxLength: path.endsWith(`{${name}}`) ? pathLengths.file : pathLengths.id,
      },
    }
  })

/** Of the query and the headers. */
const parameters = (route: Route, hasRead: boolean, components: Components): Json[] => {
  const query = route.query === undefined ? {} : components.add(route.query, 'input')
  const required = (query['required'] ?? []) as string[]
  const asked = Object.entries((query['properties'] ?? {}) as Record<string, Json>).map(
    ([name, { description, ...schema }]) => ({
      name,
      in: 'query',
      required: required.includes(name),
      ...(description === undefined ? {} : { description }),
      schema: wholeNumber(schema),
    }),
  )
  const header = (name: string, description: string): Json => ({
    name,
    in: 'header',
    required: false,
    description,
    schema: { type: 'string' },
  })
  const isChange = route.method === 'PUT' || route.method === 'DELETE'
  const headers = [
    ...(route.method === 'POST'
      ? [
          header(
            'Idempotency-Key',
            'Repeating a request under the same key within 24 hours gives the first answer again',
          ),
        ]
      : []),
    ...(hasTag(route)
      ? [
          header(
            'If-None-Match',
            'ETag of the version that the client holds: 304 if it is still the current one',
          ),
        ]
      : []),
    ...(isChange && hasRead
      ? [
          header(
            'If-Match',
            'ETag of the version that the change is meant for: 412 if it is no longer the current one',
          ),
          header('If-None-Match', '`*`: 412 if the record exists; ETag: 412 if it is the current one'),
        ]
      : []),
    ...(route.raw?.includes('text/event-stream') === true
      ? [header('Last-Event-ID', 'With `Accept: text/event-stream`: the id of the last event that was seen')]
      : []),
    ...(route.alsoStatus?.includes(206) === true
      ? [header('Range', 'One range of bytes, as `bytes=0-99`: 206 with that part')]
      : []),
    ...Object.entries(route.requestHeaders ?? {}).map(([name, description]) => header(name, description)),
    ...(route.upload === undefined
      ? []
      : [
          header(
            'Content-Digest',
            'sha-256 or sha-512 of the body (RFC 9530); needed under an Idempotency-Key',
          ),
        ]),
  ]
  return [...asked, ...headers]
}

const successResponse = (route: Route, status: number, components: Components): Json => {
  const content: Json = {}
  if (route.response !== undefined && status !== 204)
    content['application/json'] = { schema: components.add(route.response, 'output') }
  if (status !== 204)
    for (const type of route.raw ?? [])
      content[type] ??= {
        schema: /[/+](json|yaml)$/.test(type)
          ? { type: 'object', additionalProperties: { $ref: `#/components/schemas/${anyJson}` } }
          : { type: 'string' },
      }
  return {
    description: successTexts[status] ?? 'Success',
    ...(Object.keys(content).length === 0 ? {} : { content }),
  }
}

const requestBody = (route: Route, components: Components, example: unknown): Json => {
  const { body, upload } = route
  if (body === undefined && upload === undefined) return {}
  const schema = body === undefined ? undefined : components.addBody(body)
  const documents =
    schema === undefined
      ? []
      : ['application/json', 'application/yaml'].map((type) => [
          type,
          example === undefined ? { schema } : { schema, example },
        ])
  const bytes = { type: 'string', format: 'binary' }
  const field = upload?.fileField
  const sent =
    field === undefined ? bytes : { type: 'object', properties: { [field]: bytes }, required: [field] }
  const streams = (upload?.types ?? []).map((type) => [type, { schema: sent }])
  return {
    requestBody: {
      required: upload === undefined && body?._zod.optin === undefined,
      content: Object.fromEntries([...documents, ...streams]) as Json,
    },
  }
}

/** A route's success status: the declared one, or the switch to another protocol. */
const successOf = (route: Route): number =>
  route.socket !== undefined
    ? 101
    : (route.status ?? (route.response !== undefined || route.raw !== undefined ? 200 : 204))

const operation = (
  route: Route,
  place: RouteContext,
  components: Components,
  { id, example, named }: { id: string; example: unknown; named: readonly Json[] },
): Json => {
  const responses: Json = {}
  for (const status of [successOf(route), ...(route.alsoStatus ?? []).filter((also) => also < 400)])
    responses[status] = successResponse(route, status, components)
  if (hasTag(route))
    responses[304] = { description: 'The version named in If-None-Match is still the current one' }
  for (const status of refusalsOf(route, route.method, place))
    responses[status] ??= { $ref: `#/components/responses/${responseName(status)}` }
  return {
    operationId: id,
    tags: [route.tag],
    summary: route.summary,
    ...(route.public === undefined || route.public === false ? {} : { security: [] }),
    parameters: [...named, ...parameters(route, place.hasRead, components)],
    ...requestBody(route, components, example),
    responses,
  }
}

/** HEAD of a readable route: the statuses and parameters of GET, without content. */
const headOperation = (route: Route, place: RouteContext, get: Json): Json => {
  const id = get['operationId'] as string
  const refusals = refusalsOf(route, 'HEAD', place)
  const successes = Object.keys(get['responses'] as Json)
    .map(Number)
    .filter((status) => status >= 200 && status < 400)
  return {
    operationId: `head${id.charAt(0).toUpperCase()}${id.slice(1)}`,
    tags: [route.tag],
    summary: `Headers of: ${route.summary}`,
    ...(route.public === true ? { security: [] } : {}),
    parameters: get['parameters'],
    responses: Object.fromEntries(
      [...successes, ...refusals].map((status) => {
        const { content: _content, ...rest } =
          status < 400 ? { description: successTexts[status] ?? 'Success' } : errorResponse(status)
        return [status, rest]
      }),
    ),
  }
}

/**
 * The API as an OpenAPI 3.1 document: every route with its parameters, bodies, answers and
 * refusals, from the schemas that also check them. `rootRoutes` are those outside of the prefix.
 * @throws Error where two different schemas have one name
 */
export const openApi = (options: {
  routes: readonly Route[]
  rootRoutes: readonly Route[]
  prefix: string
  version: string
  tokenNeeded: boolean
  /** What a name in braces of a path stands for. */
  pathParameter?: (path: string, name: string) => string | undefined
  /** A document that each operation accepts, by its id. */
  example?: (operationId: string) => unknown
}): OpenApi => {
  const components = new Components()
  const paths: Record<string, Json> = {}
  const all = [...options.routes, ...options.rootRoutes]
  const readable = new Set(all.filter(({ method }) => method === 'GET').map(({ path }) => path))
  const add = (route: Route, isApi: boolean): void => {
    // With an empty prefix both kinds of route are on one server, and the path's own server list
    // would repeat it.
    const path = (paths[route.path] ??= isApi || options.prefix === '' ? {} : { servers: [{ url: '/' }] })
    const place = { isApi, hasRead: readable.has(route.path) }
    const { id } = route
    const described = operation(route, place, components, {
      ...{ id, example: options.example?.(id) },
      named: pathParameters(route, options.pathParameter),
    })
    path[route.method.toLowerCase()] = described
    if (route.method === 'GET') path['head'] = headOperation(route, place, described)
  }
  for (const route of options.routes) add(route, true)
  for (const route of options.rootRoutes) add(route, false)
  const refused = new Set(
    all.flatMap((route) =>
      refusalsOf(route, route.method, { isApi: true, hasRead: readable.has(route.path) }),
    ),
  )
  const schemas = { ...components.finish(), [anyJson]: anyJsonSchema }
  nameSchemas(paths, schemas)
  return {
    openapi: '3.1.0',
    info: {
      title: 'Orrery',
      version: options.version,
      description: 'Plans scientific workflows, rehearses them in simulation and runs them durably.',
    },
    servers: [{ url: options.prefix === '' ? '/' : options.prefix }],
    security: options.tokenNeeded ? [{ bearer: [] }] : [{}, { bearer: [] }],
    tags: [...new Set(all.map((route) => route.tag))].map((name) => ({ name })),
    paths,
    components: {
      schemas: {
        ...Object.fromEntries(Object.entries(schemas).toSorted(([a], [b]) => (a < b ? -1 : 1))),
        Error: errorSchema,
        Problem: problemSchema,
      },
      responses: Object.fromEntries(
        [...refused].toSorted((a, b) => a - b).map((status) => [responseName(status), errorResponse(status)]),
      ),
      securitySchemes: {
        bearer: {
          type: 'http',
          scheme: 'bearer',
          description: 'The token of SERVICE_API_TOKEN; without one only loopback peers are served',
        },
      },
      headers: {},
    },
  }
}
