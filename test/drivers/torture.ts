import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import type { Collected, Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { pathOfBytes } from '../../src/outside-path.ts'
import type { ConformanceSite } from './conformance.ts'
import { plainIntent, taskName } from './intent.ts'

/**
 * What programs write and leave that no one expects, by seed: each attempt ends by its exit code,
 * and what it wrote and left is on record.
 */

/** The bytes as the format of `printf`. */
const octal = (bytes: Uint8Array): string =>
  [...bytes].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join('')

const latin1 = (text: string): Buffer => Buffer.from(text, 'latin1')

const piece = fc.oneof(
  fc.uint8Array({ minLength: 1, maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
  fc.constantFrom(
    Buffer.from('\0'),
    latin1('\xff\xfe\xf0\x9f'),
    latin1('\xed\xa0\x80'),
    Buffer.from('🔭'),
    Buffer.from('\ufeff'),
    Buffer.from('\u202e\u2066'),
    Buffer.from(' 10%\r 50%\r100%\r\n'),
    Buffer.from('\u001b[1;31mred\u001b[0m\u001b[2K\u001b]0;title\u0007'),
    Buffer.from('\u001b]'),
    Buffer.from('\n'),
    Buffer.from('plain words'),
  ),
)

/** A text on stderr: its bytes, and how long a line of `x` stands before it. */
export const tortureText = fc.record({
  bytes: fc.array(piece, { maxLength: 12 }).map((pieces) => Buffer.concat(pieces)),
  lineBytes: fc.oneof({ weight: 9, arbitrary: fc.constantFrom(0, 4_095) }, fc.constant(10_000_000)),
  exitCode: fc.integer({ min: 0, max: 255 }),
})

const name = fc
  .oneof(
    fc.uint8Array({ minLength: 1, maxLength: 255 }).map((bytes) => Buffer.from(bytes)),
    fc.constantFrom(
      ...[
        'caf\xe9.txt',
        '\xc0\xaf',
        'a\nb',
        '\n',
        '-rf',
        '--',
        '*',
        '?[a]',
        ' ',
        '$(x)',
        '`x`',
        "'",
        '"',
      ].map(latin1),
      ...['caf\\xe9.txt', '\\', '~', '#', '.hidden', '…', '数据', '\u202ex', '\ufeffx', 'e\u0301'].map(
        (text) => Buffer.from(text),
      ),
      Buffer.alloc(255, 'x'),
      latin1('\xff'.repeat(255)),
    ),
  )
  .map((bytes) => Buffer.from(bytes.map((byte) => (byte === 0 || byte === 0x2f ? 0x5f : byte))))
  .filter((bytes) => !['.', '..'].includes(bytes.toString('latin1')))

/** How each kind of entry is made in `sh` at `$n`, and whether it is data. */
const kinds = {
  file: ['echo content > "./$n"', true],
  empty: [': > "./$n"', true],
  sparse: ['truncate -s 3M "./$n"', true],
  future: ['echo x > "./$n"; touch -d 2100-01-01 "./$n"', true],
  distantFuture: ['echo x > "./$n"; touch -d 2400-01-01 "./$n"', true],
  past: ['echo x > "./$n"; touch -d 1901-01-01 "./$n"', true],
  executable: ['echo x > "./$n"; chmod 555 "./$n"', true],
  hardLink: ['echo x > "./$n"; ln "./$n" ./another; rm ./another', true],
  dangling: ['ln -s nowhere "./$n"', true],
  looping: ['ln -s "./$n" "./$n"', true],
  folder: ['mkdir "./$n"', false],
  futureFolder: ['mkdir "./$n"; touch -d 2400-01-01 "./$n"', false],
  closedFolder: ['mkdir "./$n"; chmod 500 "./$n"', false],
  pipe: ['mkfifo "./$n"', false],
  // Its address has at most 107 bytes; a name has more. An image without Perl leaves a pipe.
  socket: [
    `perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) && bind(S, sockaddr_un("./.bound")) || die' ` +
      '2>/dev/null && mv ./.bound "./$n" || mkfifo "./$n"',
    false,
  ],
  // An account that is not root has none; it leaves a pipe.
  device: ['mknod "./$n" c 1 3 2>/dev/null || mkfifo "./$n"', false],
} as const

/** Entries of a work directory: folders named by bytes with an entry of some kind in each. */
export const tortureFolder = fc
  .uniqueArray(
    fc.record({ name, kind: fc.constantFrom(...(Object.keys(kinds) as (keyof typeof kinds)[])) }),
    {
      maxLength: 12,
      selector: (entry) => entry.name.toString('latin1'),
    },
  )
  .chain((entries) =>
    fc.record({ entries: fc.constant(entries), folder: fc.option(name, { nil: undefined }) }),
  )

type TortureFolder = typeof tortureFolder extends fc.Arbitrary<infer T> ? T : never

/** Makes the folder, in `sh`. */
const scriptOf = ({ entries, folder }: TortureFolder): string => {
  const named = (bytes: Buffer): string => `n=$(printf '${octal(bytes)}_'); n=\${n%_}`
  return [
    'set -e',
    ...(folder === undefined ? [] : [named(folder), 'mkdir "./$n"; cd "./$n"']),
    ...entries.flatMap((entry) => [named(entry.name), kinds[entry.kind][0]]),
  ].join('\n')
}

const pathsOf = ({ entries, folder }: TortureFolder): string[] =>
  entries
    .filter(({ kind }) => kinds[kind][1])
    .map((entry) =>
      pathOfBytes(
        Buffer.concat(folder === undefined ? [entry.name] : [folder, Buffer.from('/'), entry.name]),
      ),
    )
    .toSorted()

/** Ways to end without a work directory. */
const withoutFolder = [
  'rm -rf "$PWD"',
  'mv "$PWD" "$PWD.moved"',
  'd=$PWD; cd /; rm -rf "$d"; echo > "$d"',
  'd=$PWD; cd /; rm -rf "$d"; ln -s /etc "$d"',
  'd=$PWD; cd /; rm -rf "$d"; mkfifo "$d"',
]

/** Samples of a generator; the same for the same seed. */
const samples = <T>(of: fc.Arbitrary<T>, count: number, seed: number): T[] =>
  fc.sample(of, { numRuns: count, seed })

/** A site with tasks that are submitted together, and their results. */
const openTries = (site: ConformanceSite) => {
  const driver = site.open()
  let made = 0
  const intent = (script: string, more: Partial<Intent> = {}): Intent => {
    const task = taskName(++made)
    return { ...plainIntent(task, join(site.scratch, 'work', task), ['/bin/sh', '-c', script]), ...more }
  }
  const run = async (tasks: readonly Intent[]): Promise<Collected[]> => {
    const over = new Promise<void>((resolve) => {
      const waiting = new Set(tasks.map((task) => task.name))
      driver.watch([...waiting], (one) => {
        waiting.delete(one)
        if (waiting.size === 0) resolve()
      })
    })
    for (const outcome of await driver.submit(tasks)) if (!outcome.ok) throw outcome.error
    await over
    const all: Collected[] = []
    for (const task of tasks) all.push(await driver.collect(task.name))
    return all
  }
  return { driver, intent, run }
}

/** The tasks of one submit: a place may have few cores. */
const atOnce = 8

const inGroups = async <T, R>(
  items: readonly T[],
  work: (group: readonly T[]) => Promise<R[]>,
): Promise<R[]> => {
  const all: R[] = []
  for (let from = 0; from < items.length; from += atOnce)
    all.push(...(await work(items.slice(from, from + atOnce))))
  return all
}

/**
 * The number of cases in the proofs: `ORRERY_TORTURE_CASES`, by default 500, with a limit for all of
 * them in milliseconds; and the number of files in one folder.
 */
export const manyCases = {
  cases: Number(process.env['ORRERY_TORTURE_CASES'] ?? 500),
  seconds: 3_600_000,
  files: 50_000,
}

/**
 * An attempt ends, whatever its bytes, names and files are. `cases` of each generator; `seconds`:
 * milliseconds for all of one; `files`: how many one task leaves in a folder.
 */
export function tortureConformance(
  title: string,
  makeSite: () => ConformanceSite,
  {
    cases = 40,
    seconds = 300_000,
    seed = 31,
    files = 500,
  }: { cases?: number; seconds?: number; seed?: number; files?: number } = {},
): void {
  describe(`${title}: whatever a task writes and leaves`, () => {
    let site: ConformanceSite
    let driver: RuntimeDriver
    let tries: ReturnType<typeof openTries>
    beforeAll(() => {
      site = makeSite()
      tries = openTries(site)
      driver = tries.driver
    })
    afterAll(async () => {
      await driver.close()
      await site.close()
    })

    test(
      'any bytes on stderr: it ends by its exit code, the log has the bytes, the tail can be kept',
      async () => {
        await inGroups(samples(tortureText, cases, seed), async (texts) => {
          const tasks = texts.map(({ bytes, lineBytes, exitCode }) =>
            tries.intent(
              `head -c ${lineBytes} /dev/zero | tr '\\0' x >&2; printf '${octal(bytes)}' >&2; exit ${exitCode}`,
            ),
          )
          const results = await tries.run(tasks)
          for (const [k, { state, stderrTail }] of results.entries()) {
            const { bytes, lineBytes, exitCode } = texts[k]!
            // A code of 128 and the number of a signal may be read as that signal, if it ends programs.
            const isSignal = site.tellsSignals === false && exitCode > 128 && exitCode < 160
            expect(state).toMatchObject({ state: 'ended', reason: 'exited' })
            expect([exitCode, ...(isSignal ? [null] : [])]).toContain('exitCode' in state && state.exitCode)
            expect(stderrTail.isWellFormed()).toBe(true)
            // oxlint-disable-next-line no-control-regex
            expect(stderrTail).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/)
            const log = await driver.logs(tasks[k]!.name, 'stderr', { offset: lineBytes, limit: 100_000 })
            expect(log.bytes.toString('latin1')).toBe(bytes.toString('latin1'))
          }
          return results
        })
      },
      seconds,
    )

    test(
      'any names and kinds of files: it ends by its exit code, and each is listed by its bytes',
      async () => {
        await inGroups(samples(tortureFolder, cases, seed), async (folders) => {
          const tasks = folders.map((folder) => tries.intent(scriptOf(folder)))
          const results = await tries.run(tasks)
          for (const [k, { state, manifest, stderrTail }] of results.entries()) {
            expect([state, stderrTail]).toMatchObject([{ state: 'ended', exitCode: 0 }, ''])
            expect(manifest.files.map(({ path }) => path).toSorted()).toEqual(pathsOf(folders[k]!))
            expect(manifest.summary.createdFiles).toBe(manifest.files.length)
          }
          const successors = tasks.map(({ directory }, k) =>
            tries.intent('exit 0', { stage: [{ from: directory, label: `task ${String(k)}` }] }),
          )
          const after = await tries.run(successors)
          for (const [k, { state, manifest }] of after.entries()) {
            expect(state).toMatchObject({ state: 'ended', exitCode: 0 })
            expect(manifest.files).toEqual([])
            expect(manifest.summary.initialFiles).toBe(pathsOf(folders[k]!).length)
          }
          for (const task of [...tasks, ...successors]) await driver.remove(task.name)
          return results
        })
      },
      seconds,
    )

    test(
      'a work directory that is gone: it ends by its exit code, its outputs are missing, a warning says so',
      async () => {
        const tasks = withoutFolder.map((script, k) =>
          tries.intent(`echo x > a; ${script}; exit ${String(k + 3)}`, { expectedOutputs: ['a'] }),
        )
        for (const [k, { state, manifest, missingOutputs }] of (await tries.run(tasks)).entries()) {
          expect(state).toMatchObject({ state: 'ended', exitCode: k + 3, reason: 'exited' })
          if (site.directoryStays === true) continue
          expect(missingOutputs).toEqual(['a'])
          expect(manifest.files).toEqual([])
          expect([withoutFolder[k], manifest.warnings?.[0]]).toEqual([
            withoutFolder[k],
            expect.stringMatching(/work directory/),
          ])
        }
        for (const task of tasks) await driver.remove(task.name)
      },
      seconds,
    )

    test(
      'many files in one folder: it ends by its exit code, each is listed, and a successor finds all',
      async () => {
        const made = tries.intent(
          `mkdir many; k=0; while [ $k -lt ${String(files)} ]; do : > many/$k; k=$((k+1)); done; exit 5`,
        )
        const [result] = await tries.run([made])
        expect(result?.state).toMatchObject({ state: 'ended', exitCode: 5 })
        expect(result?.manifest.summary.createdFiles).toBe(files)
        expect(new Set(result?.manifest.files.map(({ path }) => path)).size).toBe(files)
        const successor = tries.intent('set -- many/*; echo $#', {
          stage: [{ from: made.directory, label: 'many' }],
        })
        const [after] = await tries.run([successor])
        expect(after?.manifest.summary.initialFiles).toBe(files)
        const { bytes } = await driver.logs(successor.name, 'stdout', { offset: 0, limit: 100 })
        expect(bytes.toString().trim()).toBe(String(files))
        for (const task of [made, successor]) await driver.remove(task.name)
      },
      seconds,
    )

    test(
      'folders deeper than a path can name: it ends by its exit code, and a warning names what is too deep',
      async () => {
        const part = 'd'.repeat(200)
        const deeper = `mkdir ${part}; cd -P ${part}`
        const script = `echo x > top; k=0; while [ $k -lt 30 ]; do ${deeper}; k=$((k+1)); done; echo x > deep`
        const task = tries.intent(script)
        const [result] = await tries.run([task])
        expect(result?.state).toMatchObject({ state: 'ended', exitCode: 0 })
        expect(result?.manifest.files.map(({ path }) => path)).toEqual(['top'])
        expect(result?.manifest.warnings?.join()).toMatch(/ddd/)
        await driver.remove(task.name)
      },
      seconds,
    )
  })
}
