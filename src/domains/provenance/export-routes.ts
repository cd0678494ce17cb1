import { Readable } from 'node:stream'
import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { Refusal, existing } from '../../refusal.ts'
import { zipStream, type ZipEntry } from '../../zip.ts'
import { openRunFiles, type RunFileParts, type RunFiles } from '../execution-runs/run-files.ts'
import {
  crateFilePath,
  crateText,
  readmeFile,
  readmeText,
  workflowDocument,
  workflowFile,
  type CrateOptions,
} from './crate.ts'
import { provDocument } from './prov.ts'
import { readRunFacts, type RunFacts } from './run-facts.ts'

export interface RunExportParts extends RunFileParts {
  api: { url: string }
}

/** Why a file that is on record cannot be read, or undefined where its site cannot be asked now. */
const unreadable = (error: unknown): string | undefined => {
  const text = 'could not be read when the crate was made: '
  if (error instanceof Refusal)
    return error.code === 'missing' || error.code === 'unacceptable' ? text + error.message : undefined
  const { code, syscall } = error as NodeJS.ErrnoException
  return code === undefined || syscall === undefined ? undefined : `${text}${code}`
}

/**
 * The files of a crate, each opened after the one before it: no system allows a thousand open files.
 * The description comes last, as it tells which of them could not be read.
 */
const crateEntries = async function* (
  facts: RunFacts,
  options: CrateOptions,
  { filesOf }: Pick<RunFiles, 'filesOf'>,
): AsyncGenerator<ZipEntry> {
  const time = new Date(facts.run.finishedAt ?? facts.run.createdAt)
  const unread = new Map<string, string>()
  let opener: { task: string; open: ReturnType<typeof filesOf> } | undefined
  for (const file of options.withOutputs ? facts.files : []) {
    if (opener?.task !== file.task)
      opener = { task: file.task, open: filesOf(facts.run.id, file.activityId, file.attempt) }
    try {
      const { stream } = await (await opener.open)(file.path)
      try {
        yield { name: crateFilePath(file), time, open: () => stream }
      } finally {
        // Its reader may leave before it is opened.
        stream.destroy()
      }
    } catch (error) {
      const reason = unreadable(error)
      if (reason === undefined) throw error
      unread.set(file.id, reason)
    }
  }
  const described = { ...options, unread }
  const entry = (name: string, text: Iterable<string>): ZipEntry => ({
    ...{ name, time },
    open: () => Readable.from(text, { objectMode: false }),
  })
  yield entry('ro-crate-metadata.json', crateText(facts, described))
  yield entry(workflowFile, [workflowDocument(facts)])
  yield entry(readmeFile, [readmeText(facts, described)])
}

const CrateQuery = z.strictObject({
  data: z.enum(['outputs']).optional().describe('outputs: with the files that the activities left'),
})
const Document = z.record(z.string(), z.unknown())

const factsOf = async (db: Db, runId: string): Promise<RunFacts> =>
  existing(await readRunFacts(db, runId), 'execution run', runId)

/** Routes that export a run. */
export const exportRoutes = ({ db, sites, hostId, api }: RunExportParts): Route[] => {
  const files = openRunFiles({ db, sites, hostId })
  return [
    route('readRunCrate', 'GET /execution-runs/{runId}/crate/', {
      summary: 'A run as Provenance Run Crate: a ZIP file, or its metadata alone as JSON-LD',
      query: CrateQuery,
      raw: ['application/zip', 'application/ld+json'],
      streams: true,
      refuses: [422],
      handle: async ({ params, query, headers }) => {
        const options = { apiUrl: api.url, withOutputs: query.data === 'outputs' }
        if (options.withOutputs) files.requireHere()
        const facts = await factsOf(db, params.runId)
        const type = preferred(headers['accept'], ['application/zip', 'application/ld+json'])
        if (type === 'application/ld+json')
          return new Reply({
            stream: Readable.from(crateText(facts, options), { objectMode: false }),
            headers: { 'content-type': type },
          })
        const name = encodeURIComponent(`${params.runId}.crate.zip`)
        return new Reply({
          // A partial crate is of no use: where a site cannot be reached, the answer breaks off.
          stream: zipStream(crateEntries(facts, options, files)),
          headers: { 'content-type': type, 'content-disposition': `attachment; filename*=UTF-8''${name}` },
        })
      },
    }),
    route('getRunProv', 'GET /execution-runs/{runId}/prov/', {
      summary: 'A run as PROV-JSON',
      response: Document,
      refuses: [422],
      handle: async ({ params }) => provDocument(await factsOf(db, params.runId), api.url),
    }),
  ]
}
