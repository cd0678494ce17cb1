import { expect } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { needs } from '../support/needs.ts'
import { filesOf, shared } from './trace.ts'

const { afterEach, beforeEach, describe, test } = needs('shared')

const samples = shared('samples')

// The bundles were written to be used alone: two of them call a runtime `local`, and ids are
// global.
let app: OpenedRoutes
beforeEach(async () => {
  app = await openRoutes(inventoryRoutes())
})
afterEach(() => app.close())

const file = (path: string): string => readFileSync(join(samples, path), 'utf8')
const document = (path: string): Record<string, unknown> => parse(file(path)) as Record<string, unknown>
const send = (to: string, path: string) =>
  app.call('POST', to, file(path), {
    'content-type': path.endsWith('.json') ? 'application/json' : 'application/yaml',
  })
const accepted = async (to: string, path: string): Promise<void> => {
  const answer = await send(to, path)
  expect([answer.status, answer.body.error, answer.body.details]).toEqual([201, undefined, undefined])
}
const environments = filesOf(samples, /environment(\.template)?\.(yaml|json)$/)

test('the samples are there', () => {
  expect(environments).toHaveLength(6)
})

describe('a sample environment is accepted as it is, and read back', () => {
  test.each(environments)('%s', async (path) => {
    await accepted('/environments/', path)
    const sent = document(path) as { environment: { id: string } }
    expect(
      (await app.call('GET', `/environments/${encodeURIComponent(sent.environment.id)}/`)).body,
    ).toMatchObject(sent)
  })
})

describe('scope and topology of a bundle are accepted after its environment, which is in use then', () => {
  test.each(['simulation', 'local-direct-hello', 'showcase-anomaly-detection'])('%s', async (bundle) => {
    await accepted('/environments/', `${bundle}/environment.yaml`)
    for (const [to, part] of [
      ['/execution-scopes/', 'scope.yaml'],
      ['/network-topologies/', 'topology.yaml'],
    ] as const) {
      await accepted(to, `${bundle}/${part}`)
      const sent = document(`${bundle}/${part}`)
      expect((await app.call('GET', `${to}${encodeURIComponent(String(sent['id']))}/`)).body).toMatchObject(
        sent,
      )
    }
    const { environment } = document(`${bundle}/environment.yaml`) as { environment: { id: string } }
    const again = await app.call(
      'PUT',
      `/environments/${environment.id}/`,
      file(`${bundle}/environment.yaml`),
      {
        'content-type': 'application/yaml',
      },
    )
    expect([again.status, again.body.error]).toEqual([
      422,
      expect.stringContaining('used by execution scope'),
    ])
  })
})

describe('a bundle whose environments are elsewhere is refused with every missing one, and accepted once they exist', () => {
  test.each([
    ['transfer-strategy-matrix', 'topology.json'],
    ['roundtrip-hpc-k8s-cloud', 'network.json'],
  ])('%s', async (bundle, topology) => {
    const { environmentVersionIds } = document(`${bundle}/scope.json`) as { environmentVersionIds: string[] }
    const { links } = document(`${bundle}/${topology}`) as {
      links: { sourceResourceId: string; targetResourceId: string }[]
    }
    const refused = await send('/execution-scopes/', `${bundle}/scope.json`)
    expect([refused.status, refused.body.details.map((detail: { path: string }) => detail.path)]).toEqual([
      422,
      environmentVersionIds.map((_, i) => `environmentVersionIds.${String(i)}`),
    ])

    const ends = [...new Set(links.flatMap((link) => [link.sourceResourceId, link.targetResourceId]))]
    for (const [i, version] of environmentVersionIds.entries()) {
      const resources = i === 0 ? ends.map((id) => ({ id, name: id, providerId: id })) : []
      const environment = {
        environment: { id: `environment of ${version}`, name: version },
        version: { id: version, version: 1 },
        resources,
      }
      expect((await app.call('POST', '/environments/', environment)).status).toBe(201)
    }
    await accepted('/execution-scopes/', `${bundle}/scope.json`)
    await accepted('/network-topologies/', `${bundle}/${topology}`)
  })
})
