import { readFileSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { breakingChanges } from './breaking-changes.ts'

type Json = Record<string, any>

let service: TestService
let document: Json
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_CONSOLE_ENABLED: 'true', SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() },
  })
  document = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as Json
})
afterAll(() => service[Symbol.asyncDispose]())

const operations = (): { method: string; path: string; operation: Json }[] =>
  Object.entries<Json>(document['paths']).flatMap(([path, item]) =>
    Object.entries<Json>(item)
      .filter(([method]) => method !== 'servers' && method !== 'head')
      .map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
  )

test('every route has an operation id of its own', () => {
  const all = operations().map(({ method, path, operation }) => [operation['operationId'], method, path])
  expect(all.filter(([id], at) => id === '' || all.findIndex(([other]) => other === id) !== at)).toEqual([])
})

test('every body and answer has a name, none above 40 characters', () => {
  const contents = operations().flatMap(({ method, path, operation }) =>
    [operation['requestBody'], ...Object.values(operation['responses'] as Json)].flatMap((content) =>
      Object.entries<Json>((content as Json | undefined)?.['content'] ?? {}).flatMap(([type, media]) =>
        /^application\/(json|yaml)$/.test(type) ? [{ at: `${method} ${path} ${type}`, media }] : [],
      ),
    ),
  )
  const unnamed = contents.filter(({ media }) => media['schema'].$ref === undefined).map(({ at }) => at)
  // The document itself.
  expect(unnamed.filter((at) => !at.includes('/openapi.json'))).toEqual([])
  expect(contents.length).toBeGreaterThan(150)
  const names = Object.keys(document['components'].schemas as Json)
  expect(names.filter((name) => name.length > 40)).toEqual([])
  expect(names).toEqual(
    expect.arrayContaining(['ExecutionRun', 'StartRunBody', 'RunSummary', 'Plan', 'RunList']),
  )
})

test('what may be left out of a body may be blank, also where it is one of several words', () => {
  const schemas = document['components'].schemas as Json
  const refused: string[] = []
  const seen = new Set<Json>()
  const walk = (given: Json, at: string): void => {
    const schema: Json = given['$ref'] === undefined ? given : schemas[given['$ref'].split('/').at(-1)]
    if (seen.has(schema)) return
    seen.add(schema)
    for (const [name, member] of Object.entries<Json>(schema['properties'] ?? {})) {
      const words = (member['$ref'] === undefined ? member : schemas[member['$ref'].split('/').at(-1)]).enum
      const isLeftOut = schema['required']?.includes(name) !== true
      if (isLeftOut && words?.every((word: unknown) => typeof word === 'string') && !words.includes(''))
        refused.push(`${at}.${name}`)
      walk(member, `${at}.${name}`)
    }
    for (const one of [
      ...(schema['anyOf'] ?? []),
      ...(schema['items'] === undefined ? [] : [schema['items']]),
    ])
      walk(one, at)
  }
  for (const { method, path, operation } of operations()) {
    const body = operation['requestBody']?.content?.['application/json']
    if (body !== undefined) walk(body.schema, `${method} ${path}`)
  }
  expect(seen.size).toBeGreaterThan(200)
  expect(refused).toEqual([])
})

test('every number says what it counts: by its name, or by a description', () => {
  const ends = /(Seconds|Bytes|Ms|MiB|GiB|BitsPerSecond|Joules|Count|Version|Code|Cores|Speedup|Utilization)$/
  const words = ['bytes', 'seconds', 'version', 'page', 'total']
  const isPlain = (name: string): boolean => ends.test(name) || words.includes(name)
  const isNumber = ({ type }: Json): boolean => [type].flat().some((one) => /^(number|integer)$/.test(one))
  const silent = (schema: Json, at: string): string[] => [
    ...Object.entries<Json>(schema['properties'] ?? {}).flatMap(([name, member]) => [
      ...(isNumber(member) && member['description'] === undefined && !isPlain(name) ? [`${at}.${name}`] : []),
      ...silent(member, `${at}.${name}`),
    ]),
    ...(schema['items'] === undefined ? [] : silent(schema['items'], `${at}[]`)),
    ...[...(schema['anyOf'] ?? []), ...(schema['allOf'] ?? [])].flatMap((form: Json) => silent(form, at)),
  ]
  const schemas = Object.entries<Json>(document['components'].schemas)
  expect(schemas.flatMap(([name, schema]) => silent(schema, name))).toEqual([])
})

test('every query parameter says what it does, a number its default too', () => {
  const silent = operations().flatMap(({ method, path, operation }) =>
    (operation['parameters'] as Json[]).flatMap(({ name, in: place, required, description = '', schema }) => {
      const isFilter = /SizeBytes$/.test(name)
      const isTold =
        description !== '' &&
        (schema.type !== 'integer' || required || isFilter || /default|unless|any other/.test(description))
      return place === 'query' && !isTold ? [`${method} ${path} ${name}: ${String(description)}`] : []
    }),
  )
  expect(silent).toEqual([])
})

test('every name in a path says what it stands for', () => {
  const silent = operations().flatMap(({ method, path, operation }) =>
    (operation['parameters'] as Json[]).flatMap(({ name, in: place, description }) =>
      place === 'path' && description === undefined
        ? [`${method} ${path} ${name}: describe it in src/path-parameters.ts`]
        : [],
    ),
  )
  expect(silent).toEqual([])
})

test('every member that may be left out of a body says what it does, a number its default too', () => {
  const schemas = document['components'].schemas as Json
  const resolved = (schema: Json): Json =>
    schema['$ref'] === undefined ? schema : { ...schemas[schema['$ref'].split('/').at(-1)], ...schema }
  const silent: string[] = []
  const seen = new Set<string>()
  const walk = (given: Json, at: string): void => {
    const place = given['$ref'] ?? at
    if (seen.has(place)) return
    seen.add(place)
    const schema = resolved(given)
    for (const [name, member] of Object.entries<Json>(schema['properties'] ?? {})) {
      const { description, type, ...rest } = resolved(member)
      const isNumber = [type].flat().every((one) => one === 'number' || one === 'integer')
      const namesDefault = 'default' in rest || /default|ignored|left out|without it/.test(description ?? '')
      if (schema['required']?.includes(name) !== true)
        if (description === undefined || (isNumber && !namesDefault))
          silent.push(`${at}.${name}: ${String(description)}`)
      walk(member, `${at}.${name}`)
    }
    for (const one of [schema['anyOf'], schema['items'], schema['additionalProperties']].flat())
      if (typeof one === 'object') walk(one as Json, at)
  }
  for (const { method, path, operation } of operations()) {
    const body = operation['requestBody']?.content?.['application/json']
    if (body !== undefined) walk(body.schema, `${method} ${path}`)
  }
  expect(seen.size).toBeGreaterThan(200)
  expect(silent).toEqual([])
})

test('pages are integers, streams have a schema, headers are parameters', () => {
  const parameter = (path: string, name: string): Json | undefined =>
    (document['paths'][path].get.parameters as Json[]).find((one) => one['name'] === name)
  expect(parameter('/execution-runs/', 'pageSize')?.['schema']).toMatchObject({ type: 'integer' })
  for (const { method, path, operation } of operations()) {
    for (const one of operation['parameters'] as Json[])
      expect([
        method,
        path,
        one['name'],
        /\\d\{/.test(one['schema'].pattern ?? '') &&
          one['schema'].format === undefined &&
          one['name'] !== 'after',
      ]).toEqual([method, path, one['name'], false])
    const stream = operation['responses'][200]?.content?.['text/event-stream']
    if (stream !== undefined) {
      expect([path, stream.schema]).toEqual([
        path,
        expect.objectContaining({ contentSchema: expect.anything() }),
      ])
      expect([path, parameter(path, 'Last-Event-ID')?.['in']]).toEqual([path, 'header'])
    }
  }
  expect(parameter('/execution-runs/{runId}/summary/', 'Prefer')?.['in']).toBe('header')
})

const file = new URL('../../docs/openapi.json', import.meta.url)

test('nothing that clients use was broken since docs/openapi.json without a new version', () => {
  // With line breaks: changes of different operations stand in different lines.
  if (process.env['UPDATE_OPENAPI'] === '1') writeFileSync(file, `${JSON.stringify(document, null, 2)}\n`)
  const published = JSON.parse(readFileSync(file, 'utf8')) as Json
  const changes = breakingChanges(published, document)
  expect(
    published['info'].version === document['info'].version
      ? changes.map((change) => `${change}: keep it, or raise the version and run npm run docs:openapi`)
      : [],
  ).toEqual([])
})

test('a breaking change is found', () => {
  const broken = (change: (copy: Json) => unknown): string[] => {
    const copy = structuredClone(document)
    change(copy)
    return breakingChanges(document, copy)
  }
  expect(broken(() => undefined)).toEqual([])
  expect(broken(({ paths }) => delete paths['/events/'])).toEqual(['GET /events/: is gone'])
  expect(broken(({ components }) => delete components.schemas.ExecutionRun.properties.status)).toContainEqual(
    expect.stringMatching(/^POST \/execution-runs\/ 202\.status: is gone$/),
  )
  expect(broken(({ components }) => components.schemas.CreateSshKeyBody.required.push('comment'))).toEqual([
    'POST /ssh-keys/ body.comment: is now required',
  ])
  expect(
    broken(({ components }) => (components.schemas.ExecutionRun.properties.id = { type: 'integer' })),
  ).toContainEqual('POST /execution-runs/ 202.id: string became integer')
  expect(broken(({ paths }) => (paths['/execution-runs/'].get.operationId = 'runs'))).toEqual([
    'GET /execution-runs/: listRuns is now called runs',
  ])
  expect(broken(({ components }) => (components.schemas.ExecutionRun.properties.more = {}))).toEqual([])
})
