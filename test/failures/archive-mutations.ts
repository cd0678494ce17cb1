import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { recordRun } from '../../bench/provenance/rows.ts'
import type { Failures } from '../../bench/tally.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { isUnread, mutated, numbersOf } from '../archives/zip-forms.ts'
import { dataFolder, removeFolder } from './programs.ts'
import { openPrograms } from './rounds.ts'

const entries = ['database/instance.ndjson', 'manifest.json']

/** Each case is an honest archive with one thing changed: it is refused with a reason, and leaves nothing. */
export const openArchiveMutations = async (): Promise<Failures> => {
  const dataDir = dataFolder()
  const programs = openPrograms(dataDir, {})
  await programs.startDaemon()
  {
    await using db = openDatabase(programs.databaseUrl(), { max: 2 })
    await recordRun(db, { name: 'honest', activities: 200, edges: [] })
  }
  const answer = await fetch(`${programs.baseUrl()}/instances/default/export/`)
  const honest = Buffer.from(await answer.arrayBuffer())
  const unread = isUnread(honest, entries)
  return {
    what: 'archives with one thing changed, refused with a reason and without a trace',
    async play(number) {
      const { bytes, place, how } = mutated(honest, numbersOf(number))
      const told = `${how} at ${String(place)}`
      const response = await fetch(`${programs.baseUrl()}/instances/import/`, {
        method: 'POST',
        headers: { 'content-type': 'application/zip' },
        body: new Uint8Array(bytes),
      })
      const body = (await response.json()) as { id?: string; error?: string }
      const violations: string[] = []
      if (response.status === 201) {
        await programs.call('DELETE', `/instances/${String(body.id)}/`)
        if (!bytes.equals(honest) && !unread(bytes, place)) violations.push(`${told}: was taken`)
      } else if (response.status !== 422 || (body.error ?? '') === '')
        violations.push(`${told}: ${String(response.status)} ${JSON.stringify(body)}`)
      const left = readdirSync(join(dataDir, 'instances'))
      if (left.length > 0) violations.push(`${told}: left ${left.join(', ')}`)
      const archives = (await programs.get('/instances/')) as unknown[]
      if (archives.length !== 1) violations.push(`${told}: left an archive`)
      return { counted: 1, violations }
    },
    async close() {
      await programs.stop()
      removeFolder(dataDir)
    },
  }
}
