import { describe, expect, test } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { gzipSync } from 'node:zlib'
import { extract } from 'tar-stream'
import { sql } from '../../src/db/sql.ts'
import { openJournal } from '../../src/domains/artifacts/journal.ts'
import { readLive, readRun } from '../../src/domains/artifacts/runs.ts'
import { judgedContext } from '../../src/drivers/build/context.ts'
import { openArtifactStore } from '../../src/drivers/build/store.ts'
import { until } from '../failures/programs.ts'
import { cloneDatabase } from '../support/database.ts'
import { runFolder } from '../support/run-folder.ts'
import { proved } from '../support/share.ts'
import { retyped, tarOf } from './world.ts'

/** What builders get of a context whose archive can be read in more than one way. */

const limitBytes = 2 ** 20

/** Path and text of each file that a builder gets, folders with a slash at their end. */
const judged = async (archive: Buffer): Promise<[string, string][]> => {
  const found: [string, string][] = []
  const unpacked = extract()
  judgedContext(Readable.from([gzipSync(archive)]), limitBytes)
    .on('error', (error) => unpacked.destroy(error))
    .pipe(unpacked)
  for await (const entry of unpacked) {
    const pieces: Buffer[] = []
    for await (const piece of entry) pieces.push(piece as Buffer)
    found.push([entry.header.name, Buffer.concat(pieces).toString()])
  }
  return found
}

/** An entry without the end of its archive. */
const fileOf = (name: string, content: string | Buffer, flag = '0'): Buffer => {
  const bytes = Buffer.from(content)
  const head = Buffer.alloc(512)
  for (const [at, text] of [
    [0, name],
    [100, '0000644'],
    [257, 'ustar\x0000'],
  ] as const)
    head.write(text, at)
  return Buffer.concat([
    retyped(head, flag, bytes.length),
    bytes,
    Buffer.alloc(Math.ceil(bytes.length / 512) * 512 - bytes.length),
  ])
}
const recipe = fileOf('Dockerfile', 'FROM a\n')
const other = fileOf('Dockerfile', 'FROM b\n')
const end = Buffer.alloc(1_024)
/** A record of one block of text before an entry. */
const record = (flag: string, text: string): Buffer => fileOf('record', text, flag)
/** A PAX record of less than a hundred bytes. */
const pax = (name: string, value: string): string => {
  const length = name.length + value.length + 4
  return `${String(length > 9 ? length + 1 : length)} ${name}=${value}\n`
}
const taken: [string, string] = ['Dockerfile', 'FROM a\n']

describe('a context', () => {
  const gnu = [257, 'ustar  \0'] as const
  const cases: [string, Buffer[], [string, string][] | RegExp][] = [
    [
      'whose record has its size behind a zero byte',
      [
        retyped(recipe.subarray(0, 512), 'L', '\x000000001000 '),
        retyped(recipe.subarray(0, 512), '0', other.length),
        fileOf('a', 'FROM b\n'),
      ],
      [['Dockerfile', 'FROM b\n']],
    ],
    ['with a size between blanks', [retyped(recipe, '0', ' \0 7 \0  \0 \0\0')], [taken]],
    ['with a size and other text', [retyped(recipe, '0', '7 1\0')], /number that is none/],
    ['with a size of base 256', [retyped(recipe, '0', `\x80${'\0'.repeat(10)}\x07`)], [taken]],
    ['with a negative size', [retyped(recipe, '0', '\xff'.repeat(12))], /negative or too large/],
    ['with files behind its end', [recipe, end, fileOf('a', '1')], /bytes behind its end/],
    ['with a file behind a zero block', [recipe, Buffer.alloc(512), other], /bytes behind its end/],
    ['with zero bytes behind its end', [recipe, end, Buffer.alloc(20_480)], [taken]],
    [
      'with a file named like a folder',
      [retyped(fileOf('a', other), '0', other.length, [[1, '/']]), recipe],
      [['a', other.toString()], taken],
    ],
    ['with a folder as before POSIX', [retyped(fileOf('a/', ''), '\0', 512), recipe], [['./a/', ''], taken]],
    [
      'with times of GNU in the place of a prefix',
      [retyped(recipe, '0', 7, [gnu, [345, '00000000001\0'], [357, '\0abc']])],
      [taken],
    ],
    [
      'with a prefix of an early Go',
      [retyped(recipe, '0', 7, [gnu, [345, '1 2\0']])],
      [['1 2/Dockerfile', taken[1]]],
    ],
    [
      'with times of GNU that are neither',
      [retyped(recipe, '0', 7, [gnu, [345, '\xe9\0'], [357, 'abc\0']])],
      /times are no numbers|negative or too large/,
    ],
    ['with a long name that is empty', [record('L', '\0'), recipe], [taken]],
    ['with a name in two records', [record('L', 'b\0'), record('L', 'c\0'), recipe], /two records/],
    [
      'with a name before the records of all entries',
      [record('x', pax('path', 'b')), record('g', pax('comment', 'a')), recipe],
      /two records/,
    ],
    ['with times of all entries', [record('g', pax('mtime', '1000000')), recipe], [taken]],
    ['with a record of no line', [record('x', '10 path=b '), recipe], /PAX record that cannot be read/],
    ['with a record of another size', [record('x', '1e1 path=b\n'), recipe], /PAX record that cannot/],
    ['with a path taken back', [record('x', pax('path', 'b') + pax('path', '')), recipe], [taken]],
    ['with a size of PAX', [record('x', pax('size', '7')), recipe], [taken]],
    ['with a size of PAX that is none', [record('x', pax('size', '0x7')), recipe], /no number/],
    ['with a sparse file of GNU', [retyped(recipe, 'S', 7)], /sparse file/],
    ['with a kind of its own', [retyped(fileOf('a', other), 'Q', other.length), recipe], /entry of type "Q"/],
    ['with a file without a name', [fileOf('./', '1'), recipe], /names no file/],
    ['that ends with a name', [recipe, record('L', 'b\0')], /names no entry/],
    ['with ./ before its paths', [fileOf('.//Dockerfile', taken[1])], [taken]],
    [
      'with long names of many bytes',
      [record('L', `${'ü/'.repeat(200)}a\0`), fileOf('b', '1'), recipe],
      [[`${'ü/'.repeat(200)}a`, '1'], taken],
    ],
  ]
  test.each(cases)('%s is given as engines read it, or refused', async (_, pieces, expected) => {
    const given = judged(Buffer.concat([...pieces, end]))
    if (expected instanceof RegExp) await expect(given).rejects.toThrow(expected)
    else expect(await given).toEqual([['./', ''], ...expected])
  })

  test('that expands to more than sixteen times the limit is refused', async () => {
    const sent = gzipSync(Buffer.concat([fileOf('a', Buffer.alloc(limitBytes * 16)), end]))
    const given = judgedContext(Readable.from([sent]), limitBytes).resume()
    await expect(once(given, 'end')).rejects.toThrow(`more than ${limitBytes * 16} bytes`)
  })

  test('whose check value is wrong, and one that is cut in it, are refused', async () => {
    const sent = gzipSync(Buffer.concat([recipe, end]))
    const wrong = Buffer.from(sent)
    wrong.writeUInt32LE(1, sent.length - 8)
    for (const [bytes, message] of [
      [wrong, /no gzip/],
      [sent.subarray(0, -4), /send all of it/],
    ] as const)
      await expect(judgedContext(Readable.from([bytes]), limitBytes).toArray()).rejects.toThrow(message)
  })

  test('is passed on piece by piece, and its source is closed when the builder leaves', async () => {
    const many = await tarOf(
      Array.from({ length: 500 }, (_, at) => ({
        name: `${at}.bin`,
        content: randomBytes(20_000).toString('base64'),
      })),
    )
    const bytes = gzipSync(many)
    let taken = 0
    const size = Math.ceil(bytes.length / 100)
    const sent = Readable.from(
      (function* () {
        for (; taken < 100; taken++) yield bytes.subarray(taken * size, (taken + 1) * size)
      })(),
    )
    const given = judgedContext(sent, limitBytes * 100)
    for await (const _piece of given) break
    expect(given.destroyed).toBe(true)
    if (!sent.closed) await new Promise((resolve) => sent.once('close', resolve))
    expect(taken).toBeLessThan(100)
  })
})

proved(
  'the journal of a build records what its log and the database did not take, once they do',
  async () => {
    const root = mkdtempSync(join(runFolder(), 'journal-'))
    const logs = join(root, 'logs')
    const { db, drop } = await cloneDatabase()
    await db.run(sql`insert into artifact_versions (id, artifact_id, name, version, scope)
    values ('tool:1', 'tool', 'Tool', '1', 'system')`)
    await db.run(sql`insert into artifact_builds (id, artifact_version_id, source_type, context_digest,
      recipe_digest, target_format, target_os, target_architecture, cache_key, build_arguments)
    values ('b', 'tool:1', 'dockerfile', 'sha256:0', 'sha256:0', 'sif', 'linux', 'amd64', 'b', '{}')`)
    await db.run(sql`insert into build_runs (id, artifact_build_id, status, host_id)
    values ('run', 'b', 'running', 'here')`)
    const store = openArtifactStore(root)
    /** Writes of the log that were refused. */
    let refused = 0
    const appendLog: typeof store.appendLog = (name, text) =>
      store.appendLog(name, text).catch((error: unknown) => {
        refused++
        throw error
      })
    const journal = await openJournal({ db, artifactStore: { appendLog } }, 'run', 'building')
    const recorded = (line: string) =>
      until(`${line} is recorded`, 120, async () => (await readLive(db, 'run'))?.line === line)

    // The folder of the logs cannot be made.
    writeFileSync(logs, '')
    journal.say('first')
    await until('the log is refused', 120, () => refused > 0)
    rmSync(logs)
    await recorded('first')

    await db.run(sql`alter table build_runs rename to build_runs_elsewhere`)
    journal.say('second')
    const log = async () => (await store.readLog('run', { offset: 0, limit: 1_000 })).bytes.toString()
    await until('the database was asked', 120, async () => (await log()).includes('second'))
    await db.run(sql`alter table build_runs_elsewhere rename to build_runs`)
    await recorded('second')

    rmSync(logs, { recursive: true })
    writeFileSync(logs, '')
    journal.say('third')
    await expect(journal[Symbol.asyncDispose]()).rejects.toThrow(/EEXIST|ENOTDIR/)
    rmSync(logs)
    mkdirSync(logs)
    await journal[Symbol.asyncDispose]()
    expect([await log(), (await readRun(db, 'run')).logs]).toEqual(['third\n', 'first\nsecond\nthird\n'])
    await drop()
    rmSync(root, { recursive: true })
  },
)
