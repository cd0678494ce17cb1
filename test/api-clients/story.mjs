// Tells the demo's story with the client for TypeScript; prints what it saw, as the one for Python.
import { mkdtempSync, readdirSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import {
  DigestMismatch,
  NotBuilt,
  NotFound,
  Orrery,
  Unacceptable,
} from '../../clients/typescript/dist/index.js'

const [baseUrl, documentsFile, archiveFile] = process.argv.slice(2)
const documents = JSON.parse(readFileSync(documentsFile, 'utf8'))
const orrery = new Orrery({ baseUrl })
const { api } = orrery
const seen = { refusals: [] }

await api.POST('/environments/', { body: documents.environment })
await api.POST('/execution-scopes/', { body: documents.scope })
const { data: workflow } = await api.POST('/workflow-definitions/', { body: documents.workflow })
const session = { params: { path: { sessionId: 'ts' } } }
const body = {
  ...{ id: 'ts', workflowVersionId: workflow.version.id, executionScopeId: documents.scope.id },
  algorithms: [{ id: 'heft' }],
}
await api.POST('/planning-sessions/', { body })
for (;;) {
  const { data } = await api.GET('/planning-sessions/{sessionId}/', session)
  if (data.session.status === 'completed') break
  if (data.session.status === 'failed') throw new Error(JSON.stringify(data))
  await new Promise((resolve) => setTimeout(resolve, 500))
}
const { data: candidates } = await api.GET('/planning-sessions/{sessionId}/candidates/', session)
const path = { sessionId: 'ts', candidateId: (candidates.items ?? candidates)[0].id }
const { data: plan } = await api.POST('/planning-sessions/{sessionId}/candidates/{candidateId}/select/', {
  params: { path },
})
await api.POST('/execution-runs/', { body: { id: 'ts', schedulePlanId: plan.id, mode: 'real' } })
// Nothing answers for longer than a request is tried; the signal ends both.
const away = new Orrery({ baseUrl: `${baseUrl}/away`, tries: 1 })
const given = async (call) => {
  try {
    await call(AbortSignal.timeout(2_000))
    return 'ended'
  } catch (error) {
    return error.name === 'AbortError' || error.name === 'TimeoutError' ? 'timeout' : String(error)
  }
}
seen.away = [
  await given((signal) => away.runs.wait('ts', { signal })),
  await given(async (signal) => {
    for await (const _ of away.runs.events('ts', { signal })) throw new Error('an event')
  }),
]
const summary = await orrery.runs.wait('ts')
seen.status = summary.run.status
seen.events = []
for await (const event of orrery.runs.events('ts')) seen.events.push(event.sequence)
seen.behind = []
for await (const event of orrery.runs.events('ts', { after: 2 })) seen.behind.push(event.sequence)
const load = (page) =>
  api.GET('/execution-runs/{runId}/events/', {
    params: { path: { runId: 'ts' }, query: { page, pageSize: 2 } },
  })
seen.paged = []
for await (const event of orrery.pages(load)) seen.paged.push(event.sequence)
seen.audited = []
const audits = (page) => api.GET('/audit-events/', { params: { query: { page, pageSize: 2 } } })
for await (const event of orrery.pages(audits)) seen.audited.push(event.id)
const busy = new Orrery({ baseUrl: `${baseUrl}/in-flight`, tries: 2 })
seen.waited = (await busy.api.POST('/execution-scopes/', { body: documents.scope })).data.id
const file = join(mkdtempSync(join(tmpdir(), 'story-')), 'shout.txt')
await orrery.outputs.download('ts', 'shout', 'shout.txt', file)
seen.output = readFileSync(file, 'utf8')
const altered = new Orrery({ baseUrl: `${baseUrl}/altered` })
const mismatch = await altered.outputs
  .download('ts', 'shout', 'shout.txt', `${file}.2`)
  .catch((error) => error)
seen.altered = [mismatch instanceof DigestMismatch && 'DigestMismatch', readdirSync(dirname(file))]

const refused = async (type, call) => {
  try {
    await call()
  } catch (error) {
    if (!(error instanceof type)) throw error
    seen.refusals.push([error.status, error.code])
  }
}
await refused(NotFound, () => orrery.runs.wait('none'))
await refused(Unacceptable, () => api.POST('/execution-scopes/', { body: {} }))
await refused(NotBuilt, () => new Orrery({ baseUrl: `${baseUrl}/not-built` }).runs.wait('ts'))
const form = new FormData()
form.append('context', new Blob([readFileSync(archiveFile)]), 'context.tar.gz')
const { data: context } = await api.POST('/build-contexts/', { body: form })
seen.context = context.sizeBytes
await refused(Unacceptable, () =>
  api.POST('/instances/import/', {
    headers: { 'content-type': 'application/zip' },
    body: new Blob(['no archive']).stream(),
    bodySerializer: (body) => body,
    duplex: 'half',
  }),
)
process.stdout.write(JSON.stringify(seen))
