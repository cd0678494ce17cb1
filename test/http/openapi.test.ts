import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Validator } from '@seriousme/openapi-schema-validator'
import { z } from 'zod'
import { openApi } from '../../src/http/openapi.ts'
import { route } from '../../src/http/route.ts'
import { createConformance } from '../support/conformance.ts'
import { openStars, type Stars } from './stars.ts'

let service: Stars
beforeAll(async () => {
  service = await openStars()
})
afterAll(() => service.close())

type Json = Record<string, any>
const served = async (): Promise<Json> => (await service.request('/openapi.json')).body

test('the document is valid OpenAPI 3.1 and has every route, and only those', async () => {
  const document = await served()
  const result = await new Validator().validate(structuredClone(document))
  expect([result.errors, result.valid]).toEqual([undefined, true])
  expect(document['openapi']).toBe('3.1.0')
  expect(document['servers']).toEqual([{ url: '/api' }])
  expect(document['paths']['/']).toMatchObject({ servers: [{ url: '/' }], get: {} })
  const operations = Object.entries<Json>(document['paths']).flatMap(([path, item]) =>
    Object.keys(item)
      .filter((key) => key !== 'servers')
      .map((method) => `${method.toUpperCase()} ${path}`),
  )
  const declared = [
    ...service.routes.map(({ method, path }) => `${method} ${path}`),
    'GET /',
    'GET /openapi.json',
  ].flatMap((one) => (one.startsWith('GET ') ? [one, one.replace('GET', 'HEAD')] : [one]))
  expect(operations.toSorted()).toEqual(declared.toSorted())
  const ids = Object.values<Json>(document['paths']).flatMap((item) =>
    Object.values<Json>(item).flatMap((operation) =>
      operation['operationId'] === undefined ? [] : [operation['operationId']],
    ),
  )
  expect(new Set(ids).size).toBe(ids.length)
})

test('an operation names parameters, both media types, every status and its security', async () => {
  const document = await served()
  const create = document['paths']['/stars/'].post
  expect(Object.keys(create.requestBody.content)).toEqual(['application/json', 'application/yaml'])
  expect(create.requestBody).toMatchObject({
    required: true,
    content: { 'application/yaml': { schema: { $ref: '#/components/schemas/StarInput' } } },
  })
  expect(create.responses[201].content['application/json'].schema).toEqual({
    $ref: '#/components/schemas/Star',
  })
  const refusalsOf = (operation: Json): number[] =>
    Object.keys(operation['responses'])
      .map(Number)
      .filter((status) => status >= 400)
  expect(refusalsOf(create)).toEqual([400, 401, 403, 408, 409, 413, 415, 422, 423, 431, 500, 503])
  for (const status of refusalsOf(create))
    expect(create.responses[status].$ref).toBe(`#/components/responses/Refused${String(status)}`)
  expect(refusalsOf(document['paths']['/stars/{starId}/'].get)).toEqual([
    400, 401, 403, 404, 412, 431, 500, 503,
  ])
  expect(refusalsOf(document['paths']['/text/'].get)).toContain(406)
  expect(refusalsOf(document['paths']['/drawings/'].get)).not.toContain(406)
  expect(refusalsOf(document['paths']['/instance/'].get)).not.toContain(401)
  const { head } = document['paths']['/stars/{starId}/']
  expect(refusalsOf(head)).toEqual([400, 401, 403, 404, 412, 431, 500, 503])
  expect(Object.values<Json>(head.responses).some((answer) => 'content' in answer || '$ref' in answer)).toBe(
    false,
  )
  expect(document['components'].responses.Refused422.content).toMatchObject({
    'application/json': {},
    'application/problem+json': {},
  })
  expect(document['components'].schemas.StarInput.required).toEqual(['id', 'name'])
  expect(document['components'].schemas.Star.required).toEqual(['id', 'name', 'kind', 'planets', 'moons'])
  expect(
    document['paths']['/stars/'].get.parameters.map((one: Json) => [one['name'], one['in'], one['required']]),
  ).toEqual([
    ['page', 'query', false],
    ['pageSize', 'query', false],
    ['kind', 'query', false],
    ['If-None-Match', 'header', false],
  ])
  expect(document['paths']['/stars/{starId}/'].get.parameters[0]).toMatchObject({
    name: 'starId',
    in: 'path',
    required: true,
  })
  expect(document['paths']['/instance/'].get.security).toEqual([])
  // `metadata` of a star is a free object.
  expect(document['components'].schemas.Star.properties.metadata.$ref).toBe('#/components/schemas/JsonObject')
  expect(document['components'].schemas.JsonObject.additionalProperties).toEqual({
    $ref: '#/components/schemas/JsonValue',
  })
  expect(document['components'].schemas.Error.example).toMatchObject({ code: 'unacceptable' })
})

test('names nest, and two schemas of one name stop the start', () => {
  const Inner = z.strictObject({ size: z.number().default(1) }).meta({ id: 'Inner' })
  const Outer = z.strictObject({ inner: Inner }).meta({ id: 'Outer' })
  const make = (body: z.ZodType) =>
    openApi({
      routes: [
        route('postO', 'POST /o/', {
          summary: 'o',
          tag: 'o',
          body,
          response: Outer,
          status: 201,
          handle: () => ({ inner: { size: 1 } }),
        }),
      ],
      rootRoutes: [],
      prefix: '',
      version: '1',
      tokenNeeded: true,
    })
  const { schemas } = make(Outer).components
  expect(schemas['OuterInput']).toMatchObject({
    properties: { inner: { $ref: '#/components/schemas/InnerInput' } },
  })
  expect(schemas['Outer']).toMatchObject({ properties: { inner: { $ref: '#/components/schemas/Inner' } } })
  expect(() =>
    make(z.strictObject({ a: Inner, b: z.strictObject({ other: z.string() }).meta({ id: 'Inner' }) })),
  ).toThrow(/Inner/)
})

test('the conformance check finds what is not promised', async () => {
  const { check } = createConformance(await served())
  const star = { id: 'a', name: 'x', kind: 'dwarf', planets: 1, moons: [] }
  const type = 'application/json'
  check('GET', '/stars/{starId}/', 200, type, JSON.stringify(star))
  check('HEAD', '/stars/{starId}/', 200, type, undefined)
  check('DELETE', '/stars/{starId}/', 204, undefined, undefined)
  check('GET', undefined, 404, type, '{"error":"x","code":"missing","details":[]}')
  expect(() =>
    check('GET', '/stars/{starId}/', 200, type, JSON.stringify({ ...star, planets: '1', more: 1 })),
  ).toThrow(/additional[\s\S]*planets must be integer/)
  expect(() => check('GET', '/stars/{starId}/', 200, 'text/html', '<p>')).toThrow(
    /"text\/html" is not declared/,
  )
  expect(() => check('GET', '/stars/{starId}/', 200, 'text/plain', undefined)).toThrow(
    /"text\/plain" is not declared/,
  )
  expect(() => check('GET', '/stars/{starId}/', 418, type, '{}')).toThrow(/does not have this status/)
  expect(() => check('GET', '/planets/', 200, type, '{}')).toThrow(/no such operation/)
  expect(() => check('GET', '/stars/{starId}/', 404, type, '{"error":"x"}')).toThrow(/required/)
  expect(() => check('GET', '/stars/{starId}/', 200, type, '{"half')).toThrow(/not JSON/)
  expect(() => check('DELETE', '/stars/{starId}/', 204, undefined, 'text')).toThrow(/without content/)
  expect(() => check('GET', undefined, 404, type, '{}')).toThrow(/required/)
})
