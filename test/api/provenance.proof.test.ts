import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { recordRun } from '../../bench/provenance/rows.ts'
import { openReader } from '../../src/db/reader.ts'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import type { Answer } from '../support/client.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes((db, atClose, databaseUrl) => {
    const reader = atClose.use(openReader({ databaseUrl, readerUrl: undefined }))
    return provenanceRoutes({ db, reader })
  })
  await recordRun(app.db, {
    ...{ name: 'w', activities: 8 },
    edges: Array.from({ length: 7 }, (_, at) => [at, at + 1] as const),
  })
})
afterAll(() => app.close())

const ask = (statement: string): Promise<Answer> => app.call('POST', '/provenance/sql/', { statement })

test('ten seconds are the longest, and four statements run at once', async () => {
  const endless = `select count(*) from ${Array.from({ length: 12 }, (_, i) => `data_uses d${String(i)}`).join(', ')}`
  const began = performance.now()
  const answers = await Promise.all([
    ...Array.from({ length: 4 }, () => ask(endless)),
    new Promise((go) => setTimeout(go, 2_000)).then(() => ask('select id from runs')),
  ])
  expect(answers.map(({ status }) => status)).toEqual([400, 400, 400, 400, 503])
  expect(answers[0]?.body.error).toMatch(/longer than 10 s/)
  expect(performance.now() - began).toBeLessThan(30_000)
  expect((await ask('select id from runs')).status).toBe(200)
})
