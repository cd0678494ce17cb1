import { expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import type { Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openLocalDriver } from '../../src/drivers/runtime/local/driver.ts'
import { outputManifest } from '../../src/drivers/runtime/local/manifest.ts'
import { removeTree } from '../../src/drivers/runtime/local/remove-tree.ts'
import { stage, type StagedFile } from '../../src/drivers/runtime/local/staging.ts'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'
import { runnerProgram } from '../support/runner-program.ts'
import { plainIntent, taskName } from './intent.ts'
import { tortureConformance } from './torture.ts'

const seconds = 120_000

tortureConformance('local', () => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-odd-'))
  return {
    scratch,
    open: () => openLocalDriver({ controlDirectory: join(scratch, 'control'), runnerProgram }),
    submitter: [],
    close: () => removeTree(scratch),
  }
})

const on = async (
  check: (site: {
    driver: RuntimeDriver
    scratch: string
    intent: (script: string, more?: Partial<Intent>) => Intent
    ended: (name: string) => Promise<unknown>
  }) => Promise<void>,
): Promise<void> => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-odd-'))
  const driver = openLocalDriver({ controlDirectory: join(scratch, 'control'), runnerProgram })
  let count = 0
  try {
    await check({
      driver,
      scratch,
      intent: (script, more = {}) => {
        const name = taskName(++count)
        return { ...plainIntent(name, join(scratch, 'work', name), ['/bin/sh', '-c', script]), ...more }
      },
      ended: (name) => new Promise((resolve) => driver.watch([name], resolve)),
    })
  } finally {
    await driver.close()
    await removeTree(scratch)
  }
}

/** As an account to which modes mean something; root reads everything. */
const ordinarily = async <T>(folder: string, work: () => Promise<T>): Promise<T> => {
  if (process.getuid?.() !== 0) return work()
  execFileSync('chown', ['-R', '65534', folder])
  process.seteuid?.(65534)
  try {
    return await work()
  } finally {
    process.seteuid?.(0)
  }
}

test('what cannot be read is listed without a checksum, named in a warning, not brought, and removed', async () => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-odd-'))
  const root = join(scratch, 'producer')
  mkdirSync(join(root, 'closed'), { recursive: true })
  writeFileSync(join(root, 'closed', 'a'), 'a')
  writeFileSync(join(root, 'good'), 'good')
  writeFileSync(join(root, 'secret'), 'secret')
  execFileSync('chmod', ['000', join(root, 'closed'), join(root, 'secret')])
  execFileSync('chmod', ['755', scratch])
  const staged: StagedFile[] = []
  const record = (files: readonly StagedFile[]): void => void staged.push(...files)
  const facts = { runtime: 'local', hostname: 'here', startedAt: 0 }
  await ordinarily(scratch, async () => {
    const { files, warnings } = await outputManifest({ ...facts, root, staged: [] })
    expect(files).toMatchObject([
      { path: 'good', checksum: expect.any(String) },
      { path: 'secret', sizeBytes: 6 },
    ])
    expect(files[1]).not.toHaveProperty('checksum')
    expect(warnings?.toSorted()).toEqual([
      '"secret" could not be read (EACCES); it is listed without a checksum',
      'folder "closed" could not be read (EACCES); its files are not listed',
    ])

    const consumer = join(scratch, 'consumer')
    await stage(consumer, [{ from: root, label: 'producer' }], record, () => false)
    const after = await outputManifest({ ...facts, root: consumer, staged, startedAt: Date.now() })
    expect(after.files).toEqual([])
    expect(after.summary).toMatchObject({ initialFiles: 1, finalFiles: 1 })
    expect(after.warnings?.toSorted()).toEqual([
      '"closed" of a predecessor was not brought: EACCES',
      '"secret" of a predecessor was not brought: EACCES',
    ])
    await expect(
      stage(
        join(scratch, 'other'),
        [{ from: root, label: 'producer', paths: ['secret'] }],
        record,
        () => false,
      ),
    ).rejects.toMatchObject({
      trouble: 'user',
      message: expect.stringMatching(/producer leaves "secret", which/),
    })
    chmodSync(scratch, 0o500)
    await removeTree(root)
  })
  expect(existsSync(root)).toBe(false)
  await removeTree(scratch)
})

test(
  'links that lead inside come along, others are left out with a warning; of unnamed files the later stays',
  () =>
    on(async ({ driver, scratch, intent, ended }) => {
      const run = async (script: string, more?: Partial<Intent>) => {
        const task = intent(script, more)
        expect(await driver.submit([task])).toMatchObject([{ ok: true }])
        await ended(task.name)
        return { ...(await driver.collect(task.name)), directory: task.directory, name: task.name }
      }
      // As a shell names the work directory where the way to it has a link.
      mkdirSync(join(scratch, 'work'))
      symlinkSync('work', join(scratch, 'way'))
      const maker = await run(
        `echo two > v2; mkdir -p d/e; echo f > d/e/f; ln -s "$PWD/v2" latest; ln -s "$PWD/d" folder; ln -s .. d/up
         ln -s "$(cd -P . && pwd)/v2" d/real; ln -s folder/e/f chain; ln -s "$PWD/" whole
         ln -s ../../$(basename "$PWD")/v2 d/back
         ln -s /usr/bin/env out; ln -s out far; ln -s ../.. d/above; ln -s "$PWD/../x" beside
         ln -s loop loop; ln -s later gone
         mkdir c; echo maker > c/x; echo file > k`,
        {
          directory: join(scratch, 'way', 'maker'),
          expectedOutputs: ['latest', 'folder/e/f', 'd/up/v2', 'far', 'loop'],
        },
      )
      expect(maker.missingOutputs).toEqual(['far', 'loop'])
      expect(maker.strayOutputs?.map(({ why }) => why)).toEqual([
        'it leads by the link "out" to "/usr/bin/env", outside of its work directory',
        'it is a link to "loop", which leads in a circle',
      ])
      const stage = { from: maker.directory, label: 'maker', named: ['v2'] }
      const other = await run('mkdir c k; echo other > c/x; echo in > k/in; echo three > v2')
      const another = { from: other.directory, label: 'other', named: ['none'] }
      const { manifest, directory, name } = await run(
        `cat latest folder/e/f d/real d/back chain whole/v2
         for l in out far d/above beside; do [ ! -L $l ] || echo $l; done; ls`,
        { stage: [stage] },
      )
      expect((await driver.logs(name, 'stdout', { tail: 999 })).bytes.toString()).toBe(
        'two\nf\ntwo\ntwo\nf\ntwo\nc\nchain\nd\nfolder\ngone\nk\nlatest\nloop\nv2\nwhole\n',
      )
      expect(readlinkSync(join(directory, 'latest'))).toBe('v2')
      expect(manifest.files).toEqual([])
      expect(manifest.warnings?.map((line) => line.slice(0, line.indexOf(' '))).sort()).toEqual([
        ...['"beside"', '"d/above"', '"far"', '"out"'],
      ])
      expect(await driver.submit([intent('true', { stage: [stage, another] })])).toMatchObject([
        {
          ok: false,
          error: { trouble: 'user', message: expect.stringMatching(/maker and other both leave "v2"/) },
        },
      ])
      rmSync(join(other.directory, 'v2'))
      const last = await run('cat c/x k/in', { stage: [stage, another] })
      expect((await driver.logs(last.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('other\nin\n')
      expect(
        last.manifest.warnings?.filter((line) => line.includes('differs')).map((line) => line.slice(0, 5)),
      ).toEqual([...['"c/x"', '"k" o']])
      const named = await run('cat latest d/e/f', { stage: [{ ...stage, paths: ['latest', 'folder/e/f'] }] })
      expect((await driver.logs(named.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('two\nf\n')
      expect(await driver.submit([intent('true', { stage: [{ ...stage, paths: ['far'] }] })])).toMatchObject([
        {
          ok: false,
          error: {
            trouble: 'user',
            message: expect.stringMatching(/maker leaves "far".*"out" to "\/usr\/bin\/env"/),
          },
        },
      ])
    }),
  seconds,
)

test(
  'its home is a folder beside its work directory, is no output, and goes with it',
  () =>
    on(async ({ driver, intent, ended }) => {
      const task = intent('echo x > "$HOME/x" && echo "$HOME" && chmod 500 "$HOME" && echo y > y')
      await driver.submit([task])
      await ended(task.name)
      const { manifest } = await driver.collect(task.name)
      expect(manifest.files.map(({ path }) => path)).toEqual(['y'])
      const home = `${task.directory}.home`
      expect((await driver.logs(task.name, 'stdout', { tail: 999 })).bytes.toString()).toBe(`${home}\n`)
      expect(existsSync(join(home, 'x'))).toBe(true)
      await driver.remove(task.name)
      expect(existsSync(home)).toBe(false)
    }),
  seconds,
)

test(
  'the end of its runner is a failure that names it, and is suspect',
  () =>
    on(async ({ driver, intent, ended }) => {
      const task = intent('kill -9 $PPID; sleep 60')
      await driver.submit([task])
      await ended(task.name)
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({
        state: 'lost',
        cause: expect.stringMatching(/its runner was ended/),
        suspect: true,
      })
    }),
  seconds,
)

test(
  'the end of a task whose work directory cannot be reached has all its outputs missing, and the cause',
  () =>
    on(async ({ driver, intent, ended }) => {
      const task = intent('echo x > out; mv ../../work ../../moved && echo > ../../work', {
        expectedOutputs: ['out'],
      })
      await driver.submit([task])
      await ended(task.name)
      const { state, missingOutputs, manifest } = await driver.collect(task.name)
      expect(state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect(missingOutputs).toEqual(['out'])
      expect(manifest.warnings).toEqual([expect.stringContaining('could not be read (ENOTDIR)')])
    }),
  seconds,
)

test(
  'a stopped runner goes on',
  () =>
    on(async ({ driver, intent, ended }) => {
      const task = intent('kill -STOP $PPID; exit 4')
      await driver.submit([task])
      await ended(task.name)
      expect((await driver.collect(task.name)).state).toMatchObject({ state: 'ended', exitCode: 4 })
    }),
  seconds,
)

test(
  'a cancel ends the look at the files of an ended task',
  () =>
    on(async ({ driver, intent, ended }) => {
      const task = intent('truncate -s 1T f')
      await driver.submit([task])
      await ended(task.name)
      const collecting = driver.collect(task.name)
      await driver.cancel([task.name], 0)
      const { state, manifest } = await collecting
      expect(state).toMatchObject({ state: 'ended', exitCode: 0, reason: 'cancelled' })
      expect(manifest.files).toMatchObject([{ path: 'f', sizeBytes: 1024 ** 4 }])
      expect(manifest.warnings).toEqual(['the look at its files was ended by a cancel'])
    }),
  seconds,
)

test(
  'a cancel whose mark cannot be written ends the task all the same, is an error, and leaves no file open',
  () =>
    on(async ({ driver, scratch, intent, ended }) => {
      // The runner reads the mark at each signal: a file without an end must not fill its memory.
      const task = intent(`echo > running; until [ -e full ]; do sleep .01; done; kill -TERM $PPID
        echo > signalled; sleep 600`)
      await driver.submit([task])
      const seen = (file: string) => until(file, 120, () => existsSync(join(task.directory, file)))
      await seen('running')
      // A full disk.
      symlinkSync('/dev/full', join(scratch, 'control', `${task.name}.cancel`))
      writeFileSync(join(task.directory, 'full'), '')
      await seen('signalled')
      const cancelled = driver.cancel([task.name], 0)
      await expect(cancelled).rejects.toMatchObject({ code: 'ENOSPC' })
      await ended(task.name)
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({
        ...{ state: 'ended', reason: 'cancelled' },
      })
      const open = readdirSync('/proc/self/fd').filter((file) => {
        try {
          return readlinkSync(`/proc/self/fd/${file}`) === '/dev/full'
        } catch {
          return false
        }
      })
      expect(open).toEqual([])
      await driver.cancel([task.name], 0)
    }),
  seconds,
)

test(
  'an output that cannot be kept is not the output of the next task, and the log of errors says so',
  () =>
    on(async ({ driver, scratch, intent, ended }) => {
      const logOf = async (name: string, stream: 'stdout' | 'stderr'): Promise<string> =>
        (await driver.logs(name, stream, { tail: 999 })).bytes.toString()
      const [first, second] = [intent('echo first; echo error >&2'), intent('echo second')]
      mkdirSync(join(scratch, 'control', `${first.name}.out`))
      for (const task of [first, second]) {
        await driver.submit([task])
        await ended(task.name)
      }
      expect(await logOf(second.name, 'stdout')).toBe('second\n')
      expect(await logOf(first.name, 'stderr')).toMatch(
        /^error\nits standard output could not be kept: .*\.out: .+\n$/,
      )
    }),
  seconds,
)

test(
  'holes stay holes where a successor gets the file',
  () =>
    on(async ({ driver, intent, ended }) => {
      const producer = intent(
        'truncate -s 300M f; echo end >> f; echo begin | dd of=f conv=notrunc 2> /dev/null',
      )
      await driver.submit([producer])
      await ended(producer.name)
      const consumer = intent('tail -c 4 f; head -c 6 f', {
        stage: [{ from: producer.directory, label: 'producer' }],
      })
      await driver.submit([consumer])
      await ended(consumer.name)
      const { size, blocks } = statSync(join(consumer.directory, 'f'))
      expect(size).toBe(300 * 1024 ** 2 + 4)
      expect(blocks * 512).toBeLessThan(8 * 1024 ** 2)
      const { bytes } = await driver.logs(consumer.name, 'stdout', { offset: 0, limit: 100 })
      expect(bytes.toString()).toBe('end\nbegin\n')
    }),
  seconds,
)

test('a file from before 1970 keeps its time where a successor gets it, and is no output of it', () =>
  on(async ({ driver, scratch, intent, ended }) => {
    const [from, time] = [join(scratch, 'old'), new Date(-86_400_000)]
    mkdirSync(from)
    writeFileSync(join(from, 'f'), 'old')
    utimesSync(join(from, 'f'), time, time)
    const consumer = intent('true', { stage: [{ from, label: 'old' }] })
    await driver.submit([consumer])
    await ended(consumer.name)
    expect(statSync(join(consumer.directory, 'f')).mtimeMs).toBe(time.getTime())
    expect((await driver.collect(consumer.name)).manifest.files).toEqual([])
  }))

test('an expected output with a part that no folder can hold is refused, naming it', () =>
  on(async ({ driver, intent }) => {
    const [outcome] = await driver.submit([
      intent('exit 0', { expectedOutputs: [`a/${'x'.repeat(300)}.csv`] }),
    ])
    expect(outcome).toMatchObject({
      ok: false,
      error: {
        trouble: 'refused',
        message: expect.stringMatching(
          /expectedOutputs "a\/x+\.csv" has a part of 304 bytes, and no file system takes more than 255; shorten it/,
        ),
      },
    })
  }))
