import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { Validator } from '@seriousme/openapi-schema-validator'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { tableCounts } from '../support/table-counts.ts'
import { specifiedPairs } from './specified-pairs.ts'

interface Pair {
  method: string
  path: string
}

let service: TestService
let document: any
let built: Pair[]
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_CONSOLE_ENABLED: 'true', SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() },
  })
  document = await (await fetch(`${service.rootUrl}/openapi.json`)).json()
  built = Object.entries<Record<string, unknown>>(document.paths)
    .filter(([, item]) => item['servers'] === undefined)
    // HEAD stands beside every GET.
    .flatMap(([path, item]) =>
      Object.keys(item)
        .filter((method) => method !== 'head')
        .map((method) => ({ method: method.toUpperCase(), path })),
    )
})
afterAll(() => service[Symbol.asyncDispose]())

const text = ({ method, path }: Pair): string => `${method} ${path}`
const has = (pairs: readonly Pair[], pair: Pair): boolean => pairs.some((other) => text(other) === text(pair))
/** The path of a record that does not exist. */
const concrete = (path: string): string => path.replaceAll(/\{\w+\}/g, 'no-such-record')
/** Whether a path as sent is one of a template's, read from the template's text alone. */
const fits = (path: string, template: string): boolean =>
  new RegExp(`^${template.replaceAll(/\{\w+\}$/g, '.*').replaceAll(/\{\w+\}/g, '[^/]+')}$`).test(path)

/** Beyond the specification. */
const additional: Pair[] = Object.entries({
  '/console-commands/{commandId}/': 'GET',
  '/console-commands/{commandId}/cancel/': 'POST',
  '/console-sessions/{sessionId}/': 'GET',
  '/console-sessions/{sessionId}/tickets/': 'POST',
  '/workflow-definitions/{workflowId}/': 'DELETE',
  '/workflow-definitions/{workflowId}/activities/': 'GET',
  '/schedule-plans/{planId}/': 'DELETE',
  '/schedule-plans/{planId}/assignments/': 'GET',
  '/schedule-plans/{planId}/compare/{otherPlanId}/': 'GET',
  '/artifacts/': 'POST',
  '/artifact-versions/{artifactVersionId}/': 'GET DELETE',
  '/artifact-versions/{artifactVersionId}/sbom/': 'GET',
  '/artifact-builds/{buildId}/': 'DELETE',
  '/build-contexts/{digest}/': 'DELETE',
  '/build-runs/{runId}/cancel/': 'POST',
  '/build-runs/{runId}/logs/': 'GET',
  '/build-runs/{runId}/attestation/': 'GET',
  '/attestation-key/': 'GET',
  '/build-runs/{runId}/events/': 'GET',
  '/execution-runs/{runId}/': 'DELETE',
  '/execution-runs/{runId}/cancel/': 'POST',
  '/execution-runs/{runId}/pause/': 'POST',
  '/execution-runs/{runId}/resume/': 'POST',
  '/execution-runs/{runId}/retry/': 'POST',
  '/execution-runs/{runId}/approve/': 'POST',
  '/execution-runs/{runId}/receipt/': 'GET',
  '/execution-runs/{runId}/activities/': 'GET',
  '/execution-runs/{runId}/data-transfers/': 'GET',
  '/execution-runs/{runId}/handles/': 'GET',
  '/execution-runs/{runId}/events/': 'GET',
  '/execution-runs/{runId}/summary/': 'GET',
  '/events/': 'GET',
  '/execution-runs/{runId}/activities/{activityId}/': 'GET',
  '/planning-sessions/{sessionId}/': 'DELETE',
  '/planning-sessions/{sessionId}/events/': 'GET',
  '/execution-runs/{runId}/activities/{activityId}/logs/': 'GET',
  '/execution-runs/{runId}/activities/{activityId}/outputs/': 'GET',
  '/execution-runs/{runId}/activities/{activityId}/outputs/{path}': 'GET',
  '/execution-runs/{runId}/activities/{activityId}/script/': 'GET',
  '/execution-runs/{runId}/timeline/': 'GET',
  '/execution-runs/{a}/compare/{b}/': 'GET',
  '/execution-runs/{runId}/crate/': 'GET',
  '/execution-runs/{runId}/prov/': 'GET',
  '/provenance/lineage/{entity}/{id}/closure/': 'GET',
  '/audit-events/verify/': 'GET',
  '/instances/{instanceId}/': 'GET DELETE',
  '/ssh-keys/{credentialId}/': 'GET PUT DELETE',
  '/kubernetes-tokens/': 'GET',
  '/kubernetes-tokens/{credentialId}/': 'GET PUT DELETE',
  '/cloud-credentials/': 'GET',
  '/cloud-credentials/{credentialId}/': 'GET PUT DELETE',
  '/registry-credentials/': 'GET POST',
  '/registry-credentials/{credentialId}/': 'GET PUT DELETE',
  '/environment-connections/{connectionId}/': 'GET',
  '/environment-connections/{connectionId}/discoveries/{number}/': 'GET',
  '/environment-connections/{connectionId}/login/': 'GET POST',
  '/storages/{storageId}/roots/': 'PUT',
  '/storages/{storageId}/health/': 'POST',
  '/storages/{storageId}/entries/': 'PUT',
  '/storages/{storageId}/downloads/': 'GET',
  '/storages/{storageId}/index-runs/{runId}/cancel/': 'POST',
  '/storages/{storageId}/index/': 'GET',
  '/storage-downloads/{downloadId}/cancel/': 'POST',
  '/storage-downloads/{downloadId}/retry/': 'POST',
  '/storage-downloads/{downloadId}/events/': 'GET',
  '/cloud-instances/{instanceId}/': 'GET',
  '/environments/{environmentId}/cloud-orphans/': 'GET',
  '/environments/{environmentId}/cloud-orphans/sweep/': 'POST',
  '/cloud-operations/{operationId}/cancel/': 'POST',
  '/cloud-operations/{operationId}/retry/': 'POST',
  '/function-calls/{name}/result/': 'POST',
  '/function-calls/{name}/inputs/{path}': 'GET',
  '/function-calls/{name}/outputs/{path}': 'PUT',
}).flatMap(([path, methods]) => methods.split(' ').map((method) => ({ method, path })))

describe('the pairs of the specification', () => {
  test('there are 120, all different', () => {
    expect(new Set(specifiedPairs.map(text)).size).toBe(120)
    expect(specifiedPairs).toHaveLength(120)
  })

  test('all of them are in the document, and nothing is in it that nobody promised', () => {
    expect(specifiedPairs.filter((pair) => !has(built, pair)).map(text)).toEqual([])
    expect(built.filter((pair) => !has(specifiedPairs, pair) && !has(additional, pair)).map(text)).toEqual([])
  })

  test('every built one is mounted: a record that does not exist is what it misses, if anything', async () => {
    for (const pair of built) {
      // Without a body it would empty the service.
      const body = pair.path === '/factory-reset/' ? { confirm: 'another instance' } : undefined
      const answer = await service.call(pair.method, concrete(pair.path), body)
      // Of a function's call nothing is said without its link.
      const fitting = pair.path.startsWith('/function-calls/')
        ? [400, 401]
        : pair.path === '/instances/import/'
          ? [415]
          : [200, 204, 400, 404, 422]
      expect(fitting.includes(answer.status) ? [] : [text(pair), answer.status]).toEqual([])
      if (answer.status === 404)
        expect([text(pair), answer.body.error]).not.toEqual([text(pair), expect.stringMatching(/^Not Found/)])
    }
  })

  test('every other one answers 503 not_built without Retry-After, whatever the body, and stores nothing', async () => {
    const before = await tableCounts(service.db)
    const audited = (await service.call('GET', '/audit-events/')).headers.get('x-total-count')
    for (const pair of specifiedPairs.filter((one) => !has(built, one))) {
      for (const body of pair.method === 'GET' ? [undefined] : [undefined, {}, '{half']) {
        const answer = await service.call(pair.method, concrete(pair.path), body)
        expect([text(pair), answer.status, answer.headers.get('retry-after'), answer.body]).toEqual([
          text(pair),
          503,
          null,
          { error: expect.any(String), code: 'not_built', details: [] },
        ])
      }
      expect(document.paths[pair.path]?.[pair.method.toLowerCase()]).toBeUndefined()
    }
    expect(await tableCounts(service.db)).toEqual(before)
    expect((await service.call('GET', '/audit-events/')).headers.get('x-total-count')).toBe(audited)
  })
})

describe('what is not there', () => {
  test('every path answers 405 to every method that it lacks, and says in Allow what it has', async () => {
    const all = [...specifiedPairs, ...built]
    for (const path of new Set(all.map((pair) => pair.path))) {
      const sent = concrete(path)
      const own = new Set(all.filter((pair) => fits(sent, pair.path)).map(({ method }) => method))
      const allow = [
        ...['GET', 'POST', 'PUT', 'DELETE'].filter((method) => own.has(method)),
        ...(own.has('GET') ? ['HEAD'] : []),
        'OPTIONS',
      ]
      for (const method of ['GET', 'PUT', 'POST', 'DELETE', 'PATCH'].filter((one) => !own.has(one))) {
        const answer = await service.call(method, sent, method === 'GET' ? undefined : {})
        expect([
          method,
          sent,
          answer.status,
          answer.body.code,
          answer.headers.get('allow')?.split(', ').sort(),
        ]).toEqual([method, sent, 405, 'method_not_allowed', allow.sort()])
      }
      const options = await service.call('OPTIONS', sent)
      expect([sent, options.status, options.headers.get('allow')?.split(', ').sort()]).toEqual([
        sent,
        200,
        allow.sort(),
      ])
    }
  })

  test('unknown paths are 404 with the common error: slashes, letter case and prefixes are exact', async () => {
    const withoutSlash = [...new Set(specifiedPairs.map(({ path }) => concrete(path).slice(0, -1)))]
    for (const path of [
      ...withoutSlash,
      '/',
      '//',
      '/nothing/',
      '/Environments/',
      '/environments//',
      '//environments/',
      '/environments/a/b/',
      '/api/environments/',
    ])
      for (const method of ['GET', 'POST']) {
        const answer = await service.call(method, path, method === 'GET' ? undefined : {})
        expect([method, path, answer.status, answer.body]).toEqual([
          method,
          path,
          404,
          { error: expect.stringMatching(/^Not Found/), code: 'missing', details: [] },
        ])
      }
    const outside = await fetch(`${service.rootUrl}/environments/`)
    expect(outside.status).toBe(404)
  })
})

describe('the document', () => {
  test('is valid OpenAPI 3.1', async () => {
    const result = await new Validator().validate(structuredClone(document))
    expect([result.errors, result.valid]).toEqual([undefined, true])
  })

  test('says of every route what it does, what it takes and what it answers', () => {
    const ids = new Set<string>()
    for (const { method, path } of built) {
      const operation = document.paths[path][method.toLowerCase()]
      const where = `${method} ${path}`
      expect([where, operation.summary, operation.tags, operation.operationId]).toEqual([
        where,
        expect.stringMatching(/\S{2}/),
        [expect.any(String)],
        expect.any(String),
      ])
      expect([where, ids.has(operation.operationId)]).toEqual([where, false])
      ids.add(operation.operationId)
      for (const [, name] of path.matchAll(/\{(\w+)\}/g))
        expect([where, operation.parameters]).toEqual([
          where,
          expect.arrayContaining([expect.objectContaining({ name, in: 'path', required: true })]),
        ])
      const successes = Object.entries<any>(operation.responses).filter(([status]) => Number(status) < 300)
      expect([where, successes.length > 0]).toEqual([where, true])
      for (const [status, response] of successes)
        if (status !== '204' && status !== '101')
          expect([where, status, Object.values<any>(response.content ?? {})]).toEqual([
            where,
            status,
            expect.arrayContaining([{ schema: expect.anything() }]),
          ])
      for (const status of [
        400,
        403,
        431,
        500,
        ...(operation.requestBody === undefined ? [] : [413, 415, 422]),
      ])
        expect([where, status, operation.responses[status]]).toEqual([where, status, expect.anything()])
      // An upload is no document.
      const uploads = ['*/*', 'application/zip']
      if (
        operation.requestBody !== undefined &&
        !uploads.some((type) => operation.requestBody.content[type] !== undefined)
      )
        for (const type of ['application/json', 'application/yaml'])
          expect([where, operation.requestBody.content[type].schema]).toEqual([where, expect.anything()])
    }
  })

  test('every creating or replacing route of the specification declares a body', () => {
    const steered = 'cancel|approve|refresh|sweep|\\{action\\}|select|pause|resume|retry|health|discover'
    const streamed = 'entries|instances/import|build-contexts'
    const started =
      'factory-reset|index-runs|tickets|artifact-builds/\\{buildId\\}/runs|instance-activations/\\{instanceId\\}'
    const bodiless = new RegExp(`/(${steered}|${streamed}|${started})/$`)
    for (const { method, path } of built.filter(
      (pair) => (pair.method === 'POST' || pair.method === 'PUT') && !bodiless.test(pair.path),
    ))
      expect([method, path, document.paths[path][method.toLowerCase()].requestBody?.required]).toEqual([
        method,
        path,
        true,
      ])
  })
})
