import { createHash } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { expect, jest } from '@jest/globals'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessions } from '../../src/clients/ssh/target.ts'
import type { Collected, Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openSshDriver, type SshDriverOptions } from '../../src/drivers/runtime/remote/ssh.ts'
import { transfer, type TransferOutcome } from '../../src/drivers/transfer/transfer.ts'
import { bytesOfPath, shownPath } from '../../src/outside-path.ts'
import { quote } from '../../src/shell/quote.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { sites } from '../../sites/requirements.ts'
import { startSshd, type Sshd } from '../clients/sshd.ts'
import { processesGiven } from '../../src/embedded/processes.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import { plainIntent, taskName } from './intent.ts'
import { asOrdinary, withScripts } from './scripts.ts'
import { tortureConformance } from './torture.ts'
import { proved, runsOf } from '../support/share.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.sshd)

const seconds = 120_000
let sshd: Sshd
let sessions: SshSessions
let scratch: string
let driver: RuntimeDriver
let shell: SiteShell
const here = openLocalShell()

const openDriver = (over: SiteShell, folder: string, more: Partial<SshDriverOptions> = {}): RuntimeDriver =>
  openSshDriver({
    shell: over,
    root: join(folder, 'root'),
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    pollMilliseconds: 500,
    ...more,
  })

beforeAll(async () => {
  sshd = await startSshd()
  sessions = openSshSessions()
  scratch = mkdtempSync(join(runFolder(), 'orrery-odd-'))
  shell = withScripts(sessions.shell(sshd.target()), asOrdinary)
  driver = openDriver(shell, scratch)
}, seconds)
afterAll(async () => {
  await driver.close()
  await sessions.close()
  await here.close()
  await sshd.stop()
  rmSync(scratch, { recursive: true, force: true })
})

describe('over sshd', () => {
  tortureConformance(
    'ssh',
    () => {
      const folder = mkdtempSync(join(scratch, 'torture-'))
      const open = (): RuntimeDriver => openDriver(sessions.shell(sshd.target()), folder)
      return { scratch: folder, open, submitter: [], close: () => Promise.resolve() }
    },
    { cases: runsOf(12, 40) },
  )
})

let count = 0
const intent = (script: string, more: Partial<Intent> = {}): Intent => {
  const name = taskName(++count)
  const task = plainIntent(name, join(scratch, 'work', name), ['/bin/sh', '-c', script])
  return { ...task, environment: { PATH: '/usr/bin:/bin' }, ...more }
}
const runAll = async (tasks: readonly Intent[]): Promise<Collected[]> => {
  for (const outcome of await driver.submit(tasks)) if (!outcome.ok) throw outcome.error
  const waiting = new Set(tasks.map(({ name }) => name))
  await new Promise<void>((resolve) =>
    driver.watch([...waiting], (name) => {
      waiting.delete(name)
      if (waiting.size === 0) resolve()
    }),
  )
  return Promise.all(tasks.map(({ name }) => driver.collect(name)))
}
const run = async (task: Intent): Promise<Collected> => (await runAll([task]))[0]!
const from = (task: Intent, paths?: readonly string[]): Pick<Intent, 'stage'> => ({
  stage: [{ from: task.directory, label: 'the first', ...(paths === undefined ? {} : { paths }) }],
})
const exitCodeOf = ({ state }: Collected): number | null | undefined =>
  state.state === 'ended' ? state.exitCode : undefined
const digest = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`
const refusalOf = async (task: Intent): Promise<unknown> => {
  const [outcome] = await driver.submit([task])
  return outcome?.ok === false ? outcome.error : outcome
}

/** Brings a task's files to this machine, as a site of its own. */
const bring = (task: Intent, paths?: readonly string[]): Promise<TransferOutcome> =>
  transfer({
    from: { site: 'there', shell, mounts: [] },
    to: { site: 'here', shell: here, mounts: [] },
    source: { directory: task.directory, ...(paths === undefined ? {} : { paths }) },
    directory: join(scratch, 'in', `${task.name}-${paths === undefined ? 'all' : 'named'}`),
    label: 'the first',
  })

describe('texts', () => {
  const cases = [
    ['NUL', String.raw`printf 'cannot read \000 header\n'`, 'cannot read \ufffd header'],
    ['invalid UTF-8', String.raw`printf 'a\377\360\237\230z'`, 'a\ufffd\ufffdz'],
    ['a bar', String.raw`printf '10%%\r50%%\r\033[31mfailed\033[0m\n'`, 'failed'],
    ['half a surrogate', String.raw`printf 'a\355\240\275z'`, 'a\ufffd\ufffd\ufffdz'],
  ] as const

  test(
    'of any bytes leave an attempt its exit code',
    async () => {
      const all = await runAll(cases.map(([, script]) => intent(`${script} >&2; exit 3`)))
      expect(all.map(exitCodeOf)).toEqual(cases.map(() => 3))
      expect(all.map(({ stderrTail }) => stderrTail)).toEqual(cases.map(([, , tail]) => tail))
    },
    seconds,
  )

  test(
    'of ten million letters in a line and an emoji cut at its beginning end as text',
    async () => {
      const emoji = String.raw`\360\237\230\200`
      const script = `head -c 10000000 /dev/zero | tr '\\0' x >&2; printf '${emoji.repeat(1100)}z' >&2; exit 4`
      const { state, stderrTail } = await run(intent(script))
      expect(state).toMatchObject({ state: 'ended', exitCode: 4 })
      expect(stderrTail).toMatch(/^(\u{1f600})+z$/u)
    },
    seconds,
  )
})

test(
  'a link that leads away leaves an earlier entry at its path, and takes no empty directory with it',
  async () => {
    const one = intent('echo 1 > p')
    const other = intent(
      `ln -s /usr/bin/env p; mkdir -p empty/deep full only; echo 2 > full/q
       ln -s /usr/bin/env only/l`,
    )
    await runAll([one, other])
    const stage = [one, other].map(({ name, directory }) => ({ from: directory, label: name }))
    const last = intent('cat p full/q; find . -mindepth 1 | sort', { stage })
    await run(last)
    expect((await driver.logs(last.name, 'stdout', { tail: 999 })).bytes.toString()).toBe(
      '1\n2\n./empty\n./empty/deep\n./full\n./full/q\n./only\n./p\n',
    )
  },
  seconds,
)

test(
  'links of a work directory come along where they lead inside, at its site and between sites',
  async () => {
    const first = await (async () => {
      const task = intent(
        `echo two > v2; mkdir -p env/bin; ln -s "$PWD/v2" latest; ln -s /usr/bin/env env/bin/python
         ln -s env/bin/python p
         echo kept > "$HOME/x"; [ "$HOME" = "$PWD.home" ]`,
        { expectedOutputs: ['latest', 'p'] },
      )
      const { missingOutputs, strayOutputs, manifest } = await run(task)
      expect([missingOutputs, strayOutputs?.map(({ why }) => why)]).toEqual([
        ['p'],
        ['it leads by the link "env/bin/python" to "/usr/bin/env", outside of its work directory'],
      ])
      expect(manifest.files.map(({ path }) => path)).toEqual(['env/bin/python', 'latest', 'p', 'v2'])
      return task
    })()
    const second = intent('cat latest; ls -A . env/bin', from(first))
    const { manifest } = await run(second)
    expect((await driver.logs(second.name, 'stdout', { tail: 99 })).bytes.toString()).toBe(
      'two\n.:\nenv\nlatest\nv2\n\nenv/bin:\n',
    )
    expect(manifest.warnings?.toSorted()).toEqual([
      expect.stringMatching(
        /^"env\/bin\/python" of a predecessor was not brought: .* "\/usr\/bin\/env", outside/,
      ),
      expect.stringMatching(/^"p" of a predecessor was not brought: it leads by the link/),
    ])
    for (const paths of [undefined, ['latest']]) {
      const { directory, left = [] } = await bring(first, paths)
      expect(readFileSync(join(directory, 'latest'), 'utf8')).toBe('two\n')
      expect(left.map(({ path }) => path).toSorted()).toEqual(
        paths === undefined ? ['env/bin/python', 'p'] : [],
      )
    }
  },
  seconds,
)

describe('a work directory', () => {
  const lost = [
    ['removed', 'rm -rf "$PWD"', /is gone/],
    ['moved', 'mv "$PWD" "$PWD.x"', /is gone/],
    ['replaced by a file', 'd=$PWD; cd /; rm -rf "$d"; echo > "$d"', /no directory any more/],
    ['replaced by a link', 'd=$PWD; mv "$d" "$d.y"; ln -s "$d.y" "$d"', /no directory any more/],
    ['closed', 'chmod 000 .', /"\."/],
  ] as const

  test(
    'that is lost leaves an attempt its exit code, and its outputs are missing',
    async () => {
      const tasks = lost.map(([, script]) =>
        intent(`echo 1 > out; ${script}; exit 7`, { expectedOutputs: ['out'] }),
      )
      const all = await runAll(tasks)
      expect(all.map(exitCodeOf)).toEqual(lost.map(() => 7))
      for (const [at, { manifest, missingOutputs }] of all.entries()) {
        expect(missingOutputs).toEqual(['out'])
        expect(manifest.files).toEqual([])
        expect(manifest.warnings?.join()).toMatch(lost[at]![2])
      }
      for (const { name, directory } of tasks) {
        await driver.remove(name)
        expect(existsSync(directory)).toBe(false)
      }
    },
    seconds,
  )

  test(
    'with parts that cannot be read is listed, warned of, left out of a successor, and removed',
    async () => {
      const first = intent('mkdir s s/t; echo 1 > s/t/a; echo 2 > b; echo 3 > c; chmod 000 s b; chmod 500 .')
      const { manifest, state } = await run(first)
      expect(state).toMatchObject({ exitCode: 0 })
      expect(manifest.files).toMatchObject([
        { path: 'b', change: 'created', sizeBytes: 2 },
        { path: 'c', change: 'created', sizeBytes: 2, checksum: digest('3\n') },
      ])
      expect(manifest.files[0]).not.toHaveProperty('checksum')
      expect(manifest.warnings).toEqual([
        'what is in these folders is not listed, as they cannot be read: "s"',
        'these files have no digest, as they cannot be read: "b"',
      ])
      const second = intent('cat c; test ! -e b; test ! -e s/t', from(first))
      expect((await run(second)).state).toMatchObject({ exitCode: 0 })
      for (const path of ['s', 'b'])
        expect(await refusalOf(intent('true', from(first, [path])))).toMatchObject({
          trouble: 'user',
          message: expect.stringContaining(`leaves "${path}" in a state in which it cannot be read`),
        })
      const brought = await bring(first)
      expect(readFileSync(join(brought.directory, 'c'), 'utf8')).toBe('3\n')
      expect(brought.files).toBe(1)
      await expect(bring(first, ['b'])).rejects.toMatchObject({ trouble: 'user' })
      for (const { name, directory } of [first, second]) {
        await driver.remove(name)
        expect(existsSync(directory)).toBe(false)
      }
    },
    seconds,
  )

  test(
    'deeper than a path can say is completed, and what is too deep is named',
    async () => {
      const deep =
        'for (1 .. 30) { mkdir "d" x 200 or die; chdir "d" x 200 or die } open F, ">", "low" or die'
      const first = intent(`echo 1 > top; exec perl -e ${quote(deep)}`)
      const { manifest, state } = await run(first)
      expect(state).toMatchObject({ exitCode: 0 })
      expect(manifest.files).toMatchObject([{ path: 'top', checksum: digest('1\n') }])
      expect(manifest.warnings?.join()).toMatch(/^these paths are not listed, .* 4095 bytes: .* more$/)
      const second = intent('cat top', from(first))
      expect((await run(second)).state).toMatchObject({ exitCode: 0 })
      expect(await bring(first)).toMatchObject({ bytes: 2, files: 1 })
      await driver.remove(first.name)
      expect(existsSync(first.directory)).toBe(false)
    },
    seconds,
  )

  test(
    'keeps what its links, pipes and sockets are, and asks none of them',
    async () => {
      const task = intent(
        'mkfifo p; ln -s nowhere l; ln -s l2 l2; ln -s . here; truncate -s 64M hole; echo 1 > a',
      )
      const { manifest, state } = await run(task)
      expect(state).toMatchObject({ exitCode: 0 })
      expect(manifest.files.map(({ path }) => path)).toEqual(['a', 'here', 'hole', 'l', 'l2'])
      expect(manifest).not.toHaveProperty('warnings')
      const second = intent('stat -c %b hole', from(task))
      await run(second)
      expect((await driver.logs(second.name, 'stdout', { tail: 100 })).bytes.toString()).toBe('0\n')
      const { directory, bytes } = await bring(task)
      const hole = statSync(join(directory, 'hole'))
      expect(bytes).toBe(2 + hole.size)
      expect(hole).toMatchObject({ size: 64 * 1024 * 1024, blocks: 0 })
    },
    seconds,
  )
})

proved(
  'the look at a file of any size delays no other attempt, and ends with the cancel',
  async () => {
    const task = intent('truncate -s 900G f; truncate -s 100M h; echo 1 > g')
    const [outcome] = await driver.submit([task])
    expect(outcome).toMatchObject({ ok: true })
    await new Promise<void>((resolve) => driver.watch([task.name], () => resolve()))
    const collected = driver.collect(task.name)
    const isRead = (): boolean => processesGiven('sha256sum', join(task.directory, 'f')).length > 0
    await until('the look at the file', 60, isRead)
    // As many as the site has channels, and more.
    const others = Array.from({ length: 12 }, (_, k) => intent(`truncate -s ${k < 4 ? 80 : 1}M f`))
    for (const { manifest } of await runAll(others))
      expect(manifest.files).toMatchObject([{ path: 'f', checksum: expect.any(String) }])
    expect(isRead()).toBe(true)
    await driver.cancel([task.name], 0)
    const { state, manifest } = await collected
    expect(state).toMatchObject({ state: 'ended', exitCode: 0 })
    expect(manifest.files.map(({ path, checksum }) => [path, checksum])).toEqual([
      ['f', undefined],
      ['g', digest('1\n')],
      ['h', `sha256:${createHash('sha256').update(Buffer.alloc(104_857_600)).digest('hex')}`],
    ])
    expect(manifest.warnings).toEqual([
      'these files have no digest, as the look at them ended with a cancel: "f"',
    ])
    expect(await driver.collect(task.name)).toMatchObject({ manifest })
    await until('the end of the look', 60, () => !isRead())
    await driver.remove(task.name)
    expect(readdirSync(join(scratch, 'root', 'tasks')).filter((file) => file.startsWith(task.name))).toEqual(
      [],
    )
  },
  seconds,
)

describe('files that a shared file system shows late', () => {
  test(
    'are waited for with a reason, without a delay for others, and a cancel ends the wait',
    async () => {
      const [late, cut, other] = [
        intent('echo 1 > a', { expectedOutputs: ['a', 'out/b'] }),
        intent('true', { expectedOutputs: ['never'] }),
        intent('echo 1 > a', { expectedOutputs: ['a'] }),
      ]
      for (const outcome of await driver.submit([late, cut])) expect(outcome).toMatchObject({ ok: true })
      const reasons = new Map<string, string>()
      const collects = [late, cut].map(async ({ name }) => {
        await new Promise<void>((resolve) => driver.watch([name], () => resolve()))
        return driver.collect(name, (reason) => reasons.set(name, reason))
      })
      await until('both waits', 120, () => reasons.size === 2)
      expect(reasons.get(late.name)).toMatch(/^its program has ended, and "out\/b" is not at the site yet/)
      expect(await run(other)).toMatchObject({ missingOutputs: [] })
      await driver.cancel([cut.name], 0)
      expect(await collects[1]).toMatchObject({
        state: { state: 'ended', exitCode: 0, reason: 'cancelled' },
        missingOutputs: ['never'],
      })
      mkdirSync(join(late.directory, 'out'))
      writeFileSync(join(late.directory, 'out', 'b'), '2')
      const collected = await collects[0]!
      expect(collected).toMatchObject({ missingOutputs: [], state: { exitCode: 0, reason: 'exited' } })
      expect(collected.manifest.files.map(({ path }) => path)).toEqual(['a', 'out/b'])
    },
    seconds,
  )

  test(
    'without a declaration are looked for twice; what is missing for longer than the patience is missing',
    async () => {
      const task = intent('true')
      let lists = 0
      // The first listing of the folder is that of a cache: nothing is in it.
      const stale: SiteShell = {
        ...shell,
        run: (script, options) => {
          const isFirst = script.includes('find ') && script.includes(task.directory) && lists++ === 0
          if (!isFirst && lists > 0) writeFileSync(join(task.directory, 'file'), '1')
          return shell.run(script, options)
        },
      }
      const open = (over: SiteShell, outputPatienceSeconds: number): RuntimeDriver =>
        openDriver(over, scratch, { outputPatienceSeconds })
      const [other, none] = [open(stale, 1), open(shell, 0)]
      expect(await run(task).then(({ manifest }) => manifest.files)).toEqual([])
      expect((await other.collect(task.name)).manifest.files).toMatchObject([{ path: 'file' }])
      const missing = intent('echo 1 > a', { expectedOutputs: ['b'] })
      await none.submit([missing])
      await new Promise<void>((resolve) => none.watch([missing.name], () => resolve()))
      const wait = jest.fn()
      expect(await none.collect(missing.name, wait)).toMatchObject({ missingOutputs: ['b'] })
      expect(wait).not.toHaveBeenCalled()
      expect(await other.collect(missing.name, wait)).toMatchObject({ missingOutputs: ['b'] })
      expect(wait).toHaveBeenCalled()
      await Promise.all([other.close(), none.close()])
    },
    seconds,
  )
})

test(
  'a task that ends what watches over it is lost for a reason of its own, not with its host',
  async () => {
    const ended = (signal: string): Intent =>
      intent(`p=$$
until tr '\\0' ' ' < /proc/$p/cmdline | grep -q /wrappe[r]; do p=$(cut -d ' ' -f 4 /proc/$p/stat); done
kill -s ${signal} $p; sleep 60`)
    const tasks = [ended('KILL'), ended('TERM')]
    for (const outcome of await driver.submit(tasks)) if (!outcome.ok) throw outcome.error
    await new Promise<void>((resolve) => {
      const waiting = new Set(tasks.map(({ name }) => name))
      driver.watch([...waiting], (name) => void (waiting.delete(name) && waiting.size === 0 && resolve()))
    })
    const found = await driver.find(tasks.map(({ name }) => name))
    expect(tasks.map(({ name }) => found.get(name))).toMatchObject([
      { state: 'lost', cause: expect.stringContaining('maybe by the task itself'), suspect: true },
      { state: 'lost', cause: 'its supervisor received SIGTERM' },
    ])
  },
  seconds,
)

describe('names', () => {
  const odd = [
    'caf\udce9.txt',
    'd\udcff/\udc80\udc81',
    'a\nb',
    '-rf',
    '--',
    '*',
    '?[a]',
    'back\\slash',
    '\\n',
    'quo\'te"',
    '$(id)',
    '%s%n',
    ' blank ',
    'é😀',
    'x'.repeat(255),
    '\\xe9',
    'cr\r',
  ]

  test(
    'of any bytes are listed with digests, and come to a successor byte for byte, as a whole and by name',
    async () => {
      const script = odd.map((path) => `printf x > ./${quote(path)}`).join('\n')
      const first = intent(`mkdir ${quote('d\udcff')}\n${script}`, { expectedOutputs: odd })
      const { manifest, missingOutputs } = await run(first)
      expect(missingOutputs).toEqual([])
      expect(manifest.files.map(({ path }) => shownPath(path)).sort()).toEqual(odd.map(shownPath).sort())
      for (const { checksum } of manifest.files) expect(checksum).toBe(digest('x'))
      for (const { directory } of [await bring(first), await bring(first, odd)])
        for (const path of odd)
          expect(readFileSync(Buffer.concat([Buffer.from(`${directory}/`), bytesOfPath(path)]), 'utf8')).toBe(
            'x',
          )
      const checks = odd.map((path) => `[ "$(cat ./${quote(path)})" = x ] || exit 9`).join('\n')
      const all = await runAll([
        intent(checks, from(first)),
        intent(checks, from(first, odd)),
        intent(`${checks}\nprintf y > ./${quote(odd[0]!)}`, from(first, odd)),
      ])
      expect(all.map(exitCodeOf)).toEqual([0, 0, 0])
      expect(all.map(({ staged }) => staged)).toEqual(
        all.map(() => [{ files: odd.length, bytes: odd.length }]),
      )
      expect(all.map((one) => one.manifest.files.map(({ path, change }) => [path, change]))).toEqual([
        [],
        [],
        [[odd[0], 'modified']],
      ])
    },
    seconds,
  )
})
