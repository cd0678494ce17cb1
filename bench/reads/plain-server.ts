import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import express from 'express'
import pg from 'pg'

// The obvious first version of such a server: Express, a pool, one named statement per path that
// lets PostgreSQL make the document, and its answer. The caller passes the statements, so that both
// sides run the same ones and answer the same bytes.
const [databaseUrl = '', statements = ''] = process.argv.slice(2)
const { run, environment, links } = JSON.parse(statements) as {
  run: string
  environment: string
  links: Record<string, unknown>
}

const pool = new pg.Pool({ connectionString: databaseUrl, max: 20 })
const app = express()
/** The only row's first column. */
const read = async (name: string, text: string, values: unknown[]): Promise<string | undefined> => {
  const { rows } = await pool.query<[string, ...unknown[]]>({ name, text, values, rowMode: 'array' })
  return rows[0]?.[0]
}
/** PostgreSQL writes a run up to its last brace. */
const tailOf = (runId: string): string =>
  links[runId] === undefined ? '}' : `,"links":${JSON.stringify(links[runId])}}`
const answers = {
  // The text as PostgreSQL made it: the least work for a handler …
  text: (response: express.Response, document: string) => response.type('json').send(document),
  // … and the parsed object, the usual way.
  object: (response: express.Response, document: string) => response.json(JSON.parse(document)),
}
for (const [form, answer] of Object.entries(answers)) {
  app.get(`/${form}/execution-runs/:id/`, async (request, response) => {
    const document = await read('run', run, [request.params.id, false])
    if (document === undefined) response.status(404).json({ error: 'Not Found' })
    else answer(response, document + tailOf(request.params.id))
  })
  app.get(`/${form}/environments/:id/`, async (request, response) => {
    const document = await read('environment', environment, [request.params.id])
    if (document === undefined) response.status(404).json({ error: 'Not Found' })
    else answer(response, document)
  })
}
const server = app.listen(0, '127.0.0.1')
await once(server, 'listening')
process.stdout.write(`${String((server.address() as AddressInfo).port)}\n`)
process.once('SIGTERM', () => {
  server.close()
  server.closeAllConnections()
  void pool.end()
})
