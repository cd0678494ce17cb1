import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { isForLack } from '../support/needs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { examples, makeBaseWorld, worldVariables } from './whole-documents.ts'
import { changed, openPlaces } from './whole-places.ts'
import { proved } from '../support/share.ts'

type Json = Record<string, any>

let service: TestService
let document: Json
beforeAll(async () => {
  service = await openService({
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      ...worldVariables,
    },
  })
  document = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as Json
  await makeBaseWorld(service)
})
afterAll(() => service[Symbol.asyncDispose]())

const operations = (): { method: string; path: string; operation: Json }[] =>
  Object.entries<Json>(document['paths']).flatMap(([path, item]) =>
    Object.entries<Json>(item)
      .filter(([method]) => method !== 'servers')
      .map(([method, operation]) => ({ method, path, operation })),
  )

test('an operation names the refusals that can come, and no other', () => {
  const wrong: string[] = []
  for (const { method, path, operation } of operations()) {
    const has = (status: number): boolean => operation['responses'][status] !== undefined
    const impossible = [
      405,
      // What is sent through a WebSocket may change something.
      ...((method === 'get' || method === 'head') && !path.endsWith('/stream/') ? [423] : []),
      ...(operation['requestBody'] === undefined ? [413, 415] : []),
      // Links of functions are refused with 401, and no token is asked for.
      ...(operation['security']?.length === 0 && !path.startsWith('/function-calls/') ? [401] : []),
      ...(path.includes('{') && path !== '/user-preferences/{clientId}/'
        ? []
        : // No instance was set up yet; an archive that is looked at has no key.
          (path === '/instance/' && method !== 'put') || path === '/attestation-key/'
          ? []
          : [404]),
    ]
    if (path !== '/user-preferences/{clientId}/')
      wrong.push(...impossible.filter(has).map((status) => `${method} ${path}: ${String(status)}`))
    if (path.includes('{') && method === 'get' && !has(404)) wrong.push(`${method} ${path}: 404 is missing`)
  }
  expect(wrong).toEqual([])
})

test('every read has its HEAD, with the statuses of the GET and no content', () => {
  for (const [path, item] of Object.entries<Json>(document['paths'])) {
    expect([path, 'head' in item]).toEqual([path, 'get' in item])
    if (!('get' in item)) continue
    expect([
      path,
      Object.values<Json>(item['head'].responses).filter((answer) => 'content' in answer),
    ]).toEqual([path, []])
    expect([path, Object.keys(item['head'].responses)]).toEqual([
      path,
      expect.arrayContaining(Object.keys(item['get'].responses).filter((status) => status !== '101')),
    ])
  }
})

test('every value has a type', () => {
  const untyped: string[] = []
  const look = (schema: unknown, at: string): void => {
    if (typeof schema !== 'object' || schema === null) return
    const { description: _description, default: _default, ...said } = schema as Json
    if (Object.keys(said).length === 0) untyped.push(at)
    for (const key of ['properties', 'patternProperties'])
      for (const [name, inner] of Object.entries(said[key] ?? {})) look(inner, `${at}.${name}`)
    for (const key of ['items', 'additionalProperties']) look(said[key], `${at} ${key}`)
    for (const key of ['anyOf', 'oneOf', 'allOf', 'prefixItems'])
      (said[key] as unknown[] | undefined)?.forEach((inner) => look(inner, `${at} ${key}`))
    if (
      said['type'] === 'object' &&
      ['properties', 'additionalProperties', 'patternProperties', 'anyOf'].every((key) => !(key in said))
    )
      untyped.push(`${at}: an object without members`)
  }
  for (const [name, schema] of Object.entries(document['components'].schemas)) look(schema, name)
  for (const { method, path, operation } of operations()) {
    for (const parameter of operation['parameters'] as Json[])
      look(parameter['schema'], `${method} ${path} ${String(parameter['name'])}`)
    for (const body of [operation['requestBody'], ...Object.values<Json>(operation['responses'])])
      for (const [type, content] of Object.entries<Json>((body as Json | undefined)?.['content'] ?? {}))
        look(content['schema'], `${method} ${path} ${type}`)
  }
  expect(untyped).toEqual([])
})

proved('no value that the document offers is refused for itself', async () => {
  const places = openPlaces(document)
  const refused: string[] = []
  let made = 0
  for (const example of examples) {
    for (const { path, value, schema } of places.placesOf(example.body('probe'), places.schemaOf(example))) {
      if (typeof value !== 'string') continue
      for (const offered of (places.alternative(schema, value)['enum'] ?? []) as unknown[]) {
        if (offered === value) continue
        const key = `enum-${String((made += 1))}`
        const answer = await service.call(
          example.method,
          example.path(key),
          changed(example.body(key), path, offered),
        )
        const where = path.join('.')
        const details = (answer.body?.details ?? []) as { path: string; message: string }[]
        if (isForLack(answer.body?.error, 'ansible-core', 'bubblewrap')) continue
        if (
          answer.status === 503 ||
          details.some((detail) => detail.path === where && /must be (one of )?/.test(detail.message))
        )
          refused.push(
            `${example.method} ${example.template} ${where} ${JSON.stringify(offered)}: ` +
              `${String(answer.status)} ${answer.text.slice(0, 200)}`,
          )
      }
    }
  }
  expect(made).toBeGreaterThan(20)
  expect(refused).toEqual([])
})

test('what the service does not do is not offered', () => {
  const text = JSON.stringify(document['paths']['/execution-runs/'].post.requestBody)
  expect(text).not.toContain('"interactive","')
  expect(text).not.toContain('simgrid"]')
})
