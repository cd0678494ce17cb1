import { Readable } from 'node:stream'
import { z } from 'zod'
import { ZipFile } from 'yazl'
import type { Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
import { openRunFiles, type RunFileParts } from '../execution-runs/run-files.ts'
import { crateText, fileName, readmeFile, readmeText, workflowDocument, workflowFile, type CrateOptions } from './crate.ts'
import { provDocument } from './prov.ts'
import { readRunFacts, type FileFact, type RunFacts } from './run-facts.ts'

export interface ExportParts extends RunFileParts {
  api: { url: string }
}

type OpenFile = (file: FileFact) => Promise<{ stream: Readable; sizeBytes: number }>

/** Adds the files one after the other: a thousand open ones would be too many for any system. */
const addFiles = async (zip: ZipFile, files: readonly FileFact[], open: OpenFile, mtime: Date): Promise<void> => {
  for (const file of files) {
    const { stream } = await open(file)
    const read = new Promise<void>((resolve, reject) => {
      stream.once('end', resolve)
      stream.once('error', reject)
      stream.once('close', () => reject(new Error(`${file.path} was closed before its end`)))
    })
    zip.addReadStream(stream, decodeURIComponent(fileName(file, { withOutputs: true })), { mtime, mode: 0o100644, compress: true })
    await read
  }
}

/** The crate as a ZIP file. Where a file cannot be read, the answer breaks off: half a crate is none. */
const crateZip = (facts: RunFacts, options: CrateOptions, open: OpenFile): Readable => {
  const zip = new ZipFile()
  const stream = new Readable().wrap(zip.outputStream)
  const mtime = new Date(facts.run.finishedAt ?? facts.run.createdAt)
  zip.addReadStream(Readable.from(crateText(facts, options), { objectMode: false }), 'ro-crate-metadata.json', { mtime, mode: 0o100644 })
  zip.addBuffer(Buffer.from(workflowDocument(facts)), workflowFile, { mtime, mode: 0o100644 })
  zip.addBuffer(Buffer.from(readmeText(facts)), readmeFile, { mtime, mode: 0o100644 })
  const whole = options.withOutputs ? addFiles(zip, facts.files, open, mtime) : Promise.resolve()
  whole.then(
    () => {
      zip.end()
    },
    (error: unknown) => stream.destroy(error as Error),
  )
  return stream
}

const CrateQuery = z.strictObject({ data: z.enum(['outputs']).optional().describe('outputs: with the files that the activities left') })
const Document = z.record(z.string(), z.unknown())

const factsOf = async (db: Db, runId: string): Promise<RunFacts> => {
  const facts = await readRunFacts(db, runId)
  if (facts === undefined) throw missing('execution run', runId)
  return facts
}

/** Exports of a run for others. */
export const exportRoutes = ({ db, sites, hostId, api }: ExportParts): Route[] => {
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
          return new Reply({ stream: Readable.from(crateText(facts, options), { objectMode: false }), headers: { 'content-type': type } })
        const open: OpenFile = (file) => openFile(params.runId, file.activityId, file.attempt, file.path)
        const name = encodeURIComponent(`${params.runId}.crate.zip`)
        return new Reply({
          stream: crateZip(facts, options, open),
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
