import { Readable } from 'node:stream'
import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
import { zipStream, type ZipEntry } from '../../zip.ts'
import { openRunFiles, type RunFileParts } from '../execution-runs/run-files.ts'
import {
  crateText,
  fileName,
  readmeFile,
  readmeText,
  workflowDocument,
  workflowFile,
  type CrateOptions,
} from './crate.ts'
import { provDocument } from './prov.ts'
import { readRunFacts, type FileFact, type RunFacts } from './run-facts.ts'

export interface RunExportParts extends RunFileParts {
  api: { url: string }
}

type OpenFile = (file: FileFact) => Promise<{ stream: Readable; sizeBytes: number }>

/** The files of a crate, each opened after the one before it: no system allows a thousand open files. */
const crateEntries = async function* (
  facts: RunFacts,
  options: CrateOptions,
  openFile: OpenFile,
): AsyncGenerator<ZipEntry> {
  const time = new Date(facts.run.finishedAt ?? facts.run.createdAt)
  const entry = (name: string, text: Iterable<string> | AsyncIterable<string>): ZipEntry => ({
    ...{ name, time },
    open: () => Readable.from(text, { objectMode: false }),
  })
  yield entry('ro-crate-metadata.json', crateText(facts, options))
  yield entry(workflowFile, [workflowDocument(facts)])
  yield entry(readmeFile, [readmeText(facts)])
  if (!options.withOutputs) return
  for (const file of facts.files) {
    const { stream } = await openFile(file)
    yield { name: decodeURIComponent(fileName(file, { withOutputs: true })), time, open: () => stream }
  }
}

const CrateQuery = z.strictObject({
  data: z.enum(['outputs']).optional().describe('outputs: with the files that the activities left'),
})
const Document = z.record(z.string(), z.unknown())

const factsOf = async (db: Db, runId: string): Promise<RunFacts> => {
  const facts = await readRunFacts(db, runId)
  if (facts === undefined) throw missing('execution run', runId)
  return facts
}

/** Routes that export a run. */
export const exportRoutes = ({ db, sites, hostId, api }: RunExportParts): Route[] => {
  const { openFile } = openRunFiles({ db, sites, hostId })
  return [
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/crate/',
      tag: 'provenance',
      summary: 'A run as Provenance Run Crate: a ZIP file, or its metadata alone as JSON-LD',
      query: CrateQuery,
      raw: ['application/zip', 'application/ld+json'],
      streams: true,
      refuses: [422],
      handle: async ({ params, query, headers }) => {
        const facts = await factsOf(db, params.runId)
        const options = { apiUrl: api.url, withOutputs: query.data === 'outputs' }
        const type = preferred(headers['accept'], ['application/zip', 'application/ld+json'])
        if (type === 'application/ld+json')
          return new Reply({
            stream: Readable.from(crateText(facts, options), { objectMode: false }),
            headers: { 'content-type': type },
          })
        const open: OpenFile = (file) => openFile(params.runId, file.activityId, file.attempt, file.path)
        const name = encodeURIComponent(`${params.runId}.crate.zip`)
        return new Reply({
          // A partial crate is of no use: where a file cannot be read, the answer breaks off.
          stream: zipStream(crateEntries(facts, options, open)),
          headers: { 'content-type': type, 'content-disposition': `attachment; filename*=UTF-8''${name}` },
        })
      },
    }),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/prov/',
      tag: 'provenance',
      summary: 'A run as PROV-JSON',
      response: Document,
      handle: async ({ params }) => provDocument(await factsOf(db, params.runId), api.url),
    }),
  ]
}
