import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { Failures } from '../../bench/tally.ts'
import { recordRun } from '../../bench/provenance/rows.ts'
import { openDatabase, type Database } from '../../src/db/pool.ts'
import { raw } from '../../src/db/sql.ts'
import { kill } from '../support/kill.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf, type Programs } from './rounds.ts'

/**
 * The daemon or PostgreSQL is killed while records are sealed, exported, imported, activated, reset
 * or asked for. Afterwards each is whole or not there.
 */

const deeds = ['sealing', 'export', 'import', 'activation', 'reset', 'crate', 'sql'] as const
type Deed = (typeof deeds)[number]

interface Answer {
  status: number
  body: Buffer
}

/** The recorded run of the default instance. */
const run = { name: 'kept', activities: 1_500 }

interface World {
  programs: Programs
  dataDir: string
  /** An honest export of the records. */
  archive: Buffer
}

const send = async (
  { programs }: Pick<World, 'programs'>,
  method: string,
  path: string,
  body?: { type: string; bytes: Buffer | string },
): Promise<Answer> => {
  const answer = await fetch(`${programs.baseUrl()}${path}`, {
    method,
    ...(body === undefined
      ? {}
      : {
          headers: { 'content-type': body.type },
          body: typeof body.bytes === 'string' ? body.bytes : new Uint8Array(body.bytes),
        }),
  })
  const bytes = Buffer.from(await answer.arrayBuffer())
  const length = answer.headers.get('content-length')
  if (length !== null && answer.headers.get('content-encoding') === null && Number(length) !== bytes.length)
    throw new Error('the answer was cut')
  return { status: answer.status, body: bytes }
}

const zipped = (bytes: Buffer) => ({ type: 'application/zip', bytes })
const json = (document: unknown) => ({ type: 'application/json', bytes: JSON.stringify(document) })

/** A database connection for the time of one look: PostgreSQL is killed between them. */
const inDatabase = async <T>(
  { programs, dataDir }: Pick<World, 'programs' | 'dataDir'>,
  work: (db: Database) => Promise<T>,
): Promise<T> => {
  const ready = JSON.parse(readFileSync(join(dataDir, 'ready.json'), 'utf8')) as { databaseUrl: string }
  const url = new URL(ready.databaseUrl)
  url.password = readFileSync(join(dataDir, 'postgresql.password'), 'utf8').trim()
  await using db = openDatabase(url.href, { max: 2, onError: () => undefined })
  void programs
  return await work(db)
}
const firstOf = async (db: Database, text: string): Promise<Record<string, unknown>> =>
  (await db.prepared<Record<string, unknown>>(`q${String(text.length)}${text.slice(-20)}`, text, []))[0] ?? {}

const idsOf = async (world: World): Promise<{ id: string; status: string }[]> =>
  (await world.programs.get('/instances/')) as { id: string; status: string }[]

/** Begins a deed. The answer is undefined where the blow broke it off. */
const begin = async (world: World, deed: Deed, number: number): Promise<Answer[]> => {
  const heavy =
    'select count(*) from task_executions a join task_executions b on a.id <> b.id ' +
    'join task_executions c on c.id <> b.id where a.cost + b.cost > c.cost * 3'
  switch (deed) {
    case 'sealing':
      return Promise.all(
        Array.from({ length: 60 }, (_, at) =>
          send(
            world,
            'PUT',
            `/user-preferences/round-${String(number)}-${String(at)}/`,
            json({ theme: 'dark' }),
          ),
        ),
      )
    case 'export':
      return [await send(world, 'GET', '/instances/default/export/')]
    case 'import':
      return [await send(world, 'POST', '/instances/import/', zipped(world.archive))]
    case 'activation':
      return [await send(world, 'POST', `/instance-activations/${(await idsOf(world))[1]?.id ?? ''}/`)]
    case 'reset':
      return [await send(world, 'POST', '/factory-reset/?stop=true')]
    case 'crate':
      return [await send(world, 'GET', `/execution-runs/${run.name}-run/crate/`)]
    case 'sql':
      return [await send(world, 'POST', '/provenance/sql/', json({ statement: heavy }))]
  }
}

/** The statements of every table say nothing about half of something: what is there is whole. */
const violationsOf = async (world: World, deed: Deed, answers: Answer[] | undefined): Promise<string[]> => {
  const wrong: string[] = []
  const done = (status: number): boolean => answers?.some((answer) => answer.status === status) === true
  const { dataDir, programs } = world
  const active = (await idsOf(world)).find(({ status }) => status === 'active')?.id
  if (deed === 'activation' && done(202) && active === 'default') wrong.push('an answered activation is lost')
  if (active !== 'default') await programs.post('/instance-activations/default/')
  const verdict = await until('every record to be sealed', 60, async () => {
    const found = await programs.get('/audit-events/verify/')
    return found.unsealed === 0 ? found : undefined
  })
  if (verdict.first !== undefined) wrong.push(`the chain: ${JSON.stringify(verdict.first)}`)
  if (verdict.head !== null && verdict.head.number !== verdict.sealed)
    wrong.push(`the chain has gaps: ${JSON.stringify(verdict)}`)

  const archives = (await idsOf(world)).slice(1).map(({ id }) => id)
  if (deed === 'import' && done(201) && archives.length < 2) wrong.push('an answered import is lost')
  await inDatabase(world, async (db) => {
    const { schemas } = await firstOf(
      db,
      "select count(*)::int as schemas from pg_namespace where nspname like 'archive\\_%'",
    )
    if (schemas !== archives.length * 2)
      wrong.push(`${String(schemas)} schemas of ${String(archives.length)} archives`)
    const { tasks, environments } = await firstOf(
      db,
      'select (select count(*)::int from task_executions) as tasks, ' +
        '(select count(*)::int from environments) as environments',
    )
    const whole = tasks === run.activities && environments === 1
    const empty = tasks === 0 && environments === 0
    if (deed === 'reset' ? !whole && !empty : !whole)
      wrong.push(`${String(tasks)} tasks and ${String(environments)} environments after ${deed}`)
    if (deed === 'reset' && done(202) && !empty) wrong.push('an answered reset is lost')
    if (empty) await refill(db)
    await until('the sessions of SQL to end', 10, async () => {
      const { busy } = await firstOf(
        db,
        "select count(*)::int as busy from pg_stat_activity where usename like 'orrery\\_reader%' and state = 'active'",
      )
      return busy === 0
    })
  })
  const spool = join(dataDir, 'instances')
  // An import of an archive without artifacts leaves no folder.
  const left = existsSync(spool) ? readdirSync(spool) : []
  if (left.length > 0) wrong.push(`files are left: ${left.join(', ')}`)

  if (deed === 'export' && done(200)) {
    const again = await send(
      world,
      'POST',
      '/instances/import/',
      zipped(answers?.[0]?.body ?? Buffer.alloc(0)),
    )
    if (again.status !== 201) wrong.push(`an answered export does not import: ${again.body.toString()}`)
  }
  for (const { id } of (await idsOf(world)).slice(2)) await programs.call('DELETE', `/instances/${id}/`)
  return wrong
}

const refill = async (db: Database): Promise<void> => {
  await recordRun(db, {
    ...run,
    edges: Array.from({ length: run.activities - 1 }, (_, at) => [at, at + 1] as const),
  })
  await db.run(raw('analyze'))
}

/** Fills the file system of a folder. @returns what makes room again */
const fillDisk = (folder: string): (() => void) => {
  const filler = join(folder, 'filler')
  spawnSync('sh', ['-c', 'cat /dev/zero > "$0"', filler], { stdio: 'ignore' })
  return () => {
    rmSync(filler, { force: true })
  }
}

/**
 * Opens the programs on a folder of their own, with one run on record and one archive. `smallDisk`:
 * the folder is a file system of its own, which is full while something is done (needs root).
 */
export const openRecordRounds = async ({ smallDisk = false } = {}): Promise<Failures & { deeds: number }> => {
  const dataDir = dataFolder()
  if (smallDisk) execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=700m', 'tmpfs', dataDir])
  chmodSync(dataDir, 0o711)
  const programs = openPrograms(dataDir, {})
  const world: World = { programs, dataDir, archive: Buffer.alloc(0) }
  await programs.startDaemon()
  await inDatabase(world, refill)
  world.archive = (await send(world, 'GET', '/instances/default/export/')).body
  await send(world, 'POST', '/instances/import/', zipped(world.archive))
  return {
    what: 'records: daemon or PostgreSQL killed while they are sealed, exported, imported, reset, asked for',
    deeds: smallDisk ? deeds.length : deeds.length * 2,
    async play(number) {
      const random = randomOf(number)
      const deed = deeds[number % deeds.length] ?? 'export'
      const victim = smallDisk ? 'disk' : Math.floor(number / deeds.length) % 2 === 0 ? 'daemon' : 'postgres'
      if (victim === 'disk') {
        const makeRoom = fillDisk(dataDir)
        const late = pause(20_000).then(() => undefined)
        const answers = await Promise.race([begin(world, deed, number).catch(() => undefined), late])
        makeRoom()
        await until('the service', 120, async () => {
          const found = await programs.call('GET', '/instances/').catch(() => ({ status: 0 }))
          return found.status === 200
        })
        const wrong = await violationsOf(world, deed, answers)
        return { counted: 1, violations: wrong.map((text) => `${deed} on a full disk: ${text}`) }
      }
      const pids = await programs.pids()
      const under = begin(world, deed, number).catch(() => undefined)
      await pause(random() * (deed === 'import' || deed === 'sql' ? 900 : 350))
      if (victim === 'daemon') {
        await programs.killDaemon()
        await under
        await programs.startDaemon()
      } else {
        kill(pids.postgres)
        await under
        await until('PostgreSQL', 60, async () => {
          const now = await programs.pids()
          if (now.postgres === pids.postgres) return undefined
          return (await programs.call('GET', '/instances/').catch(() => ({ status: 0 }))).status === 200
        })
      }
      const violations = await violationsOf(world, deed, await under)
      return { counted: 1, violations: violations.map((text) => `${deed}, ${victim} killed: ${text}`) }
    },
    async close() {
      await programs.stop()
      if (smallDisk) execFileSync('umount', ['--lazy', dataDir])
      removeFolder(dataDir)
    },
  }
}
