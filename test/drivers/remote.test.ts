import { afterEach, beforeEach, describe, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { leadIn, listingActions, parseListing, parseSums } from '../../src/drivers/runtime/remote/files.ts'
import {
  factsLine,
  parseFacts,
  parseRecord,
  sightOf,
  supervisionOf,
} from '../../src/drivers/runtime/remote/record.ts'
import { parseLooks } from '../../src/drivers/runtime/remote/completing.ts'
import { arrivedFiles } from '../../src/drivers/runtime/remote/late.ts'
import { openRemoteSite } from '../../src/drivers/runtime/remote/site.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { wrapper } from '../../src/drivers/runtime/remote/wrapper.ts'
import { taskScript } from '../../src/drivers/runtime/contract/task-script.ts'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'
import { proved } from '../support/share.ts'
import { plainIntent } from './intent.ts'
import { asOrdinary, withScripts } from './scripts.ts'

let scratch: string
beforeEach(() => {
  scratch = mkdtempSync(join(runFolder(), 'orrery-remote-'))
})
afterEach(() => rmSync(scratch, { recursive: true, force: true }))

describe('the script of a task', () => {
  const script = (
    argv: readonly string[],
    environment: Record<string, string>,
    workingDirectory?: string,
  ): string =>
    taskScript(
      {
        name: 'one',
        directory: scratch,
        argv,
        environment,
        ...(workingDirectory === undefined ? {} : { workingDirectory }),
        stage: [],
        expectedOutputs: [],
        cores: 1,
        memoryBytes: 0,
        timeoutSeconds: 0,
      } satisfies Intent,
      'ORRERY_TASK',
    )
  const run = (shell: string, text: string): string => {
    const file = join(scratch, 'script')
    writeFileSync(file, text)
    return execFileSync(shell, [file], { encoding: 'utf8', cwd: '/' })
  }

  test.each(['/bin/dash', '/bin/bash'])(
    'under %s: 5,000 strings of metacharacters arrive as they are, in arguments and environment, and none is executed',
    (shell) => {
      const bait = join(scratch, 'bait')
      const pieces = [
        '$(',
        '`',
        ')',
        ';',
        '&',
        '|',
        '>',
        '<',
        '\n',
        '\r',
        '\\',
        "'",
        '"',
        '*',
        '?',
        '~',
        '!',
        '#',
        '{',
        '}',
        '$HOME',
        '$@',
      ]
      const more = [
        '${IFS}',
        ' ',
        '\t',
        '-',
        '=',
        '%s',
        '\u0001',
        '\u007f',
        'é',
        '😀',
        `touch ${bait}`,
        `>${bait}`,
        '# facts {',
      ]
      const hostile = fc
        .array(fc.constantFrom(...pieces, ...more), { minLength: 0, maxLength: 12 })
        .map((parts) => parts.join(''))
      const strings = fc.sample(hostile, { seed: 20260201, numRuns: 5000 })
      const print =
        'process.stdout.write(JSON.stringify([process.argv.slice(1), process.argv.slice(1).map((_, ' +
        'i) => process.env["V" + i])]))'
      for (let from = 0; from < strings.length; from += 1000) {
        const part = strings.slice(from, from + 1000)
        const environment = Object.fromEntries(part.map((value, position) => [`V${position}`, value]))
        expect(
          JSON.parse(run(shell, script([process.execPath, '-e', print, '--', ...part], environment))),
        ).toEqual([part, part])
      }
      expect(existsSync(bait)).toBe(false)
    },
  )

  test('variables and programs with names that mean something to env or the shell', () => {
    mkdirSync(join(scratch, 'a=b -c'))
    writeFileSync(
      join(scratch, 'a=b -c', 'x=y'),
      '#!/bin/sh\nprintf "%s|" "$@" "$(pwd)"; tr "\\0" "\\n" < /proc/$$/environ | grep -c "^a[.]b-c=1$"\n',
      { mode: 0o755 },
    )
    const argv = [join(scratch, 'a=b -c', 'x=y'), '-i', 'A=B']
    for (const shell of ['/bin/dash', '/bin/bash'])
      expect(
        run(
          shell,
          script(
            argv,
            { 'a.b-c': '1', IFS: '/', PS4: '`id`', ENV: '/nowhere', RANDOM: '7', LC_ALL: 'C' },
            'a=b -c',
          ),
        ),
      ).toBe(`-i|A=B|${scratch}/a=b -c|1\n`)
  })
})

describe('the supervisor', () => {
  const names = Array.from({ length: 200 }, (_, number) => `task-${number}`)
  const supervise = (shell: string): string[] => {
    writeFileSync(join(scratch, 'wrapper'), wrapper)
    for (const name of names)
      writeFileSync(join(scratch, `${name}.a.run`), '#\n# limit 0 grace 0 memory 0 bytes 0 cores 0\ntrue\n')
    chmodSync(scratch, 0o555)
    const options = ['detached', scratch, 'ORRERY_TASK', '0', '', '', '', '']
    const command = [shell, join(scratch, 'wrapper'), ...options, ...names.map((name) => `${name}.a`)]
    // As over a link: what is said comes through one pipe. Root may write everywhere.
    const account = process.getuid?.() === 0 ? { uid: 65_534 } : {}
    try {
      const said = execFileSync('/bin/sh', ['-c', '"$@" 2>&1 < /dev/null | cat', 'sh', ...command], {
        ...account,
        encoding: 'utf8',
      })
      return said.trim().split('\n').sort()
    } finally {
      chmodSync(scratch, 0o755)
    }
  }

  test.each(['/bin/dash', '/bin/bash'])(
    'under %s: of what others have started it says so, each in a line of its own, and nothing else',
    (shell) => {
      for (const name of names) writeFileSync(join(scratch, `${name}.task`), '')
      expect(supervise(shell)).toEqual(names.map((name) => `known ${name}`).sort())
    },
  )

  test.each(['/bin/dash', '/bin/bash'])(
    'under %s: why a record cannot be made is said in the words of the system, in one line',
    (shell) => {
      const lines = supervise(shell)
      expect(lines).toHaveLength(names.length)
      for (const line of lines) expect(line).toMatch(/^failed task-\d+ .*Permission denied$/)
    },
  )
})

describe('the record of a task', () => {
  const start = 'start one.abc 7 99 boot-1 node1 1000 -'
  const facts = {
    directory: '/d',
    expectedOutputs: ['é\n'],
    sources: [],
    submittedAt: 90,
    zero: 90,
    ahead: 3600,
  }
  const seen = { ageSeconds: 0, supervised: undefined, marked: false, cancelAsked: false }
  const times = ['0m0.010000s 0m0.020000s', '1m1.500000s 0m0.250000s']

  test('facts come back from a line of ASCII', () => {
    expect(factsLine(facts)).toMatch(/^[ -~]+$/)
    expect(parseFacts(factsLine(facts))).toEqual(facts)
  })

  test('tells times by the uptime of the machine that was asked, and of another machine by its clock, set right', () => {
    const lines = [start, 'task 8', 'peak 2048', ...times, '', 'exit 3 exited 1250 .']
    expect(sightOf(parseRecord(lines), facts, seen)).toMatchObject({
      form: 'ended',
      submittedAt: 90,
      startedAt: 100,
      finishedAt: 102.5,
      wallSeconds: 2.5,
      cpuSeconds: 61.75,
      peakMemoryBytes: 2048 * 1024,
      exitCode: 3,
      signal: null,
      measuredBy: 'time',
    })
    const elsewhere = [start.replace(/-$/, '500.25'), 'exit 0 exited 1250 .']
    expect(sightOf(parseRecord(elsewhere), facts, seen)).toMatchObject({
      startedAt: 4100.25,
      finishedAt: 4102.75,
      cpuSeconds: null,
    })
  })

  test.each([
    [['exit 143 exited 1 .'], null, 'SIGTERM'],
    [['exit 147 exited 1 .'], 147, null],
    [['exit 156 exited 1 .'], 156, null],
    [['peak 1', 'exit 143 exited 1 .'], 143, null],
    [['Command terminated by signal 11', 'peak 1', 'exit 139 exited 1 .'], null, 'SIGSEGV'],
    [['exit 255 exited 1 .'], 255, null],
  ])('%j ended with %s %s', (lines, exitCode, signal) => {
    expect(sightOf(parseRecord([start, ...lines]), facts, seen)).toMatchObject({
      form: 'ended',
      exitCode,
      signal,
    })
  })

  test('cut off anywhere it has no end, and a whole line after a torn one counts', () => {
    const whole = `${start}\ntask 8\n${times.join('\n')}\n\nexit 3 exited 1250 .`
    for (let length = 0; length < whole.length; length++) {
      const parsed = parseRecord(whole.slice(0, length).split('\n'))
      expect(parsed.form === 'started' && parsed.record.exit !== undefined).toBe(false)
      const mended = parseRecord(`${whole.slice(0, length)}\nexit 3 exited 1250 .`.split('\n'))
      if (length > start.length)
        expect(mended).toMatchObject({ form: 'started', record: { exit: { code: 3 } } })
    }
  })
})

test('the clock of a host whose date knows no fractions of seconds is read', async () => {
  const real = openLocalShell()
  const shell = withScripts(real, (script) => script.replaceAll('date +%s.%N', 'date +%s.%%N'))
  const { ahead, booted, zero } = await openRemoteSite(shell, scratch).facts()
  expect([ahead, booted.here, booted.there, zero].every(Number.isFinite)).toBe(true)
  await real.close()
})

describe('a process that is not here', () => {
  const record = { node: 'login1', boot: 'first', birth: '700' }
  const host = { boot: 'first', hostname: 'login1', booted: { here: 100, there: 50 } }
  const facts = { submittedAt: 1000, ahead: 50 }

  test('lives where it was started, also under a new name of the host', () => {
    expect(supervisionOf(record, '700', host, facts)).toBe(true)
    expect(supervisionOf(record, '700', { ...host, hostname: 'renamed' }, facts)).toBe(true)
  })

  test('is gone where the host that started it answers, of the same boot or of a later one', () => {
    expect(supervisionOf(record, undefined, host, facts)).toBe(false)
    expect(supervisionOf(record, '701', host, facts)).toBe(false)
    const restarted = { ...host, boot: 'second', booted: { here: 1001, there: 951 } }
    expect(supervisionOf(record, undefined, restarted, facts)).toBe(false)
    // Either clock may have been set meanwhile.
    for (const booted of [
      { here: 1001, there: 0 },
      { here: 0, there: 951 },
    ])
      expect(supervisionOf(record, '700', { ...restarted, booted }, facts)).toBe(false)
  })

  test('is unknown where another host answers, whatever its boot, its name or its process of that id', () => {
    for (const [birth, other] of [
      [undefined, { boot: 'other', hostname: 'login2' }],
      ['700', { boot: 'other', hostname: 'login2' }],
      ['701', { boot: 'first', hostname: 'login2' }],
      [undefined, { boot: 'other', hostname: 'login2', booted: { here: 2000, there: 2000 } }],
    ] as const)
      expect(supervisionOf(record, birth, { ...host, ...other }, facts)).toMatch(
        /^it was started on login1, and login2/,
      )
    const namesake = { ...host, boot: 'other' }
    expect(supervisionOf(record, undefined, namesake, facts)).toMatch(/another host of the name login1/)
    expect(supervisionOf(record, undefined, namesake, undefined)).toMatch(/another host of the name login1/)
  })
})

describe('files that arrive late', () => {
  const arrival = { succeeded: true, missing: ['a', 'b', 'c', 'd', 'e'], bare: false, cancelAsked: false }
  const first = { looks: 1, sinceMs: 0, patienceSeconds: 60 }
  test.each([
    ['missing outputs', {}, {}, { afterMs: 250, reason: expect.stringMatching(/"a", "b", "c", and 2 more/) }],
    ['a later look', {}, { looks: 3, sinceMs: 2000 }, { afterMs: 1000 }],
    ['many looks', {}, { looks: 2000, sinceMs: 40_000 }, { afterMs: 5000 }],
    ['the last look', {}, { looks: 9, sinceMs: 59_000 }, { afterMs: 1000 }],
    ['the end of the patience', {}, { looks: 20, sinceMs: 60_000 }, 'done'],
    ['no patience', {}, { patienceSeconds: 0 }, 'done'],
    ['no patience, and an empty folder', { missing: [], bare: true }, { patienceSeconds: 0 }, 'done'],
    ['a cancel', { cancelAsked: true }, {}, 'cut'],
    ['a cancel of what has arrived', { cancelAsked: true, missing: [] }, {}, 'done'],
    ['a failed task', { succeeded: false }, {}, 'done'],
    ['all outputs', { missing: [] }, {}, 'done'],
    ['an empty folder', { missing: [], bare: true, succeeded: false }, {}, { afterMs: 0 }],
    ['a folder that stays empty', { missing: [], bare: true }, { looks: 2, sinceMs: 1 }, 'done'],
  ])('%s', (_, seen, looks, expected) => {
    const answer = arrivedFiles({ ...arrival, ...seen }, { ...first, ...looks })
    if (typeof expected === 'string') expect(answer).toBe(expected)
    else expect(answer).toMatchObject(expected)
  })

  test('answers about large files are told apart, whatever the files are called', () => {
    const [one, two] = ['1'.repeat(64), '2'.repeat(64)]
    const lines = [
      `sums t-1`,
      `\\${one}  /w/a\\ncut t-9`,
      'reading t-2',
      'cut t-3',
      `${two}  /w/sums t-1`,
      'begun t-4',
      '',
    ]
    expect(parseLooks(Buffer.from(lines.join('\n')))).toEqual(
      new Map([
        ['t-1', { state: 'sums', sums: new Map([['/w/a\ncut t-9', one]]) }],
        ['t-2', { state: 'reading', sums: new Map() }],
        ['t-3', { state: 'cut', sums: new Map([['/w/sums t-1', two]]) }],
        ['t-4', { state: 'begun', sums: new Map() }],
      ]),
    )
  })
})

test('one name, two login nodes with one home: a task is waited for until its own node answers, and never starts twice', async () => {
  /** This machine as another host: all scripts read its name and boot from files. */
  const another = (name: string): SiteShell => {
    const shell = openLocalShell()
    const [boot, hostname] = [join(scratch, `${name}.boot`), join(scratch, `${name}.name`)]
    writeFileSync(boot, `boot-of-${name}\n`)
    writeFileSync(hostname, `${name}\n`)
    const there = (script: string): string =>
      script
        .replaceAll('/proc/sys/kernel/random/boot_id', boot)
        .replaceAll('/proc/sys/kernel/hostname', hostname)
    return withScripts(shell, there)
  }
  const shells = [openLocalShell(), another('login2')] as const
  const drivers = shells.map((shell) =>
    openSshDriver({ shell, root: join(scratch, 'home'), runtime: 'ssh', taskVariable: 'ORRERY_TASK' }),
  )
  const [first, second] = drivers as [(typeof drivers)[0], (typeof drivers)[0]]
  const [ledger, gate] = [join(scratch, 'ledger'), join(scratch, 'gate')]
  const script = 'echo begun >> "$1"; until [ -e "$2" ]; do sleep 0.05; done; exit 3'
  const argv = ['sh', '-c', script, 'sh', ledger, gate]
  const task = plainIntent('roaming', join(scratch, 'work', 'roaming', '1'), argv)
  expect(await first.submit([task])).toMatchObject([{ ok: true }])
  await until('its start', 120, () => existsSync(ledger))

  const seen = (await second.find([task.name])).get(task.name)
  expect(seen).toMatchObject({ state: 'running', cause: expect.stringContaining('login2 answers') })
  expect(await second.submit([task])).toMatchObject([{ ok: true }])
  await expect(second.cancel([task.name], 0)).rejects.toMatchObject({
    trouble: 'unknown',
    message: expect.stringContaining('login2 answers'),
  })
  await expect(second.remove(task.name)).rejects.toMatchObject({ trouble: 'refused' })
  expect((await first.find([task.name])).get(task.name)).toEqual({
    state: 'running',
    externalId: expect.any(String),
    startedAt: expect.any(Number),
  })

  // The record in the home that both share tells the second its end.
  writeFileSync(gate, '')
  await until('its end', 120, async () => (await second.find([task.name])).get(task.name)?.state === 'ended')
  expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
  for (const driver of drivers) await driver.close()
  for (const shell of shells) await shell.close()
})

describe('a task at a host', () => {
  const opened: { close(): Promise<void> }[] = []
  afterEach(async () => {
    for (const one of opened.splice(0).reverse()) await one.close()
  })
  const open = (changed: (script: string) => string = (same) => same) => {
    const real = openLocalShell()
    const root = join(scratch, 'home')
    const shell = withScripts(real, changed)
    const driver = openSshDriver({ shell, root, runtime: 'ssh', taskVariable: 'ORRERY_TASK' })
    opened.push(real, driver)
    return driver
  }
  const record = (name: string): string => join(scratch, 'home', 'tasks', `${name}.task`)
  const stateIn = async (driver: ReturnType<typeof open>, name: string) =>
    (await driver.find([name])).get(name) ?? { state: 'unknown' as const }
  const task = (name: string, script: string, ...args: string[]): Intent =>
    plainIntent(name, join(scratch, 'work', name, '1'), ['sh', '-c', script, 'sh', ...args])

  /** Supervisors that write their first line once there is this file; `$name` is the task's. */
  const frozenBefore = (gate: string) => (script: string) => {
    const start = '  if ! echo "start '
    return script.replaceAll(start, `  until [ -e ${gate} ]; do sleep 0.05; done\n${start}`)
  }

  proved(
    'a supervisor that was frozen before its first line starts nothing once its task was given up or cancelled',
    async () => {
      const [gate, ledger] = [join(scratch, 'gate'), join(scratch, 'ledger')]
      const [first, second] = [open(frozenBefore(gate)), open(frozenBefore(gate))]
      const tasks = ['given-up', 'cancelled'].map((name) => task(name, 'echo begun >> "$1"', ledger))
      const submits = tasks.map((one) => first.submit([one]))
      for (const { name } of tasks) await until(`the record of ${name}`, 120, () => existsSync(record(name)))
      expect(await stateIn(second, 'given-up')).toMatchObject({ state: 'running' })
      await second.cancel(['cancelled'], 0)
      await until('its loss', 120, async () => (await stateIn(second, 'given-up')).state === 'lost')
      writeFileSync(gate, '')
      for (const submit of submits) expect(await submit).toMatchObject([{ ok: true }])
      for (const { name } of tasks) expect(readFileSync(record(name), 'utf8')).toMatch(/\nexit /)
      expect(await stateIn(first, 'given-up')).toMatchObject({ state: 'lost' })
      expect(await stateIn(first, 'cancelled')).toMatchObject({ state: 'ended', reason: 'cancelled' })
      expect(existsSync(ledger)).toBe(false)
    },
  )

  test('a cancel that meets a supervisor between its first line and its task ends the task as cancelled', async () => {
    const gate = join(scratch, 'begin')
    const limits = '  [ -z "$cgroup" ] || { [ "${cores:-0}"'
    const frozen = (script: string): string =>
      script.replaceAll(limits, `  until [ -e ${gate} ]; do sleep 0.05; done\n${limits}`)
    const [first, second] = [open(frozen), open()]
    const name = 'met'
    const submitted = first.submit([task(name, 'sleep 86400')])
    await until('its first line', 120, async () => (await stateIn(second, name)).state === 'running')
    const cancelled = second.cancel([name], 0)
    await until('the mark', 120, () => existsSync(record(name).replace('.task', '.cancel')))
    // The signal follows the mark.
    await until('a further look', 120, async () => (await stateIn(second, name)).state !== 'unknown')
    writeFileSync(gate, '')
    await Promise.all([submitted, cancelled])
    expect(await stateIn(second, name)).toMatchObject({ state: 'ended', reason: 'cancelled' })
  })

  test('a task whose record was removed while it runs is waited for, then lost, and never starts again; a cancel ends it', async () => {
    const driver = open()
    const gate = join(scratch, 'gate')
    const script = 'echo $$ >> "$1"; until [ -e "$2" ]; do sleep 0.05; done'
    const tasks = ['waited-for', 'ended'].map((name) => task(name, script, join(scratch, name), gate))
    await driver.submit(tasks)
    for (const { name } of tasks) await until('its start', 120, () => existsSync(join(scratch, name)))
    for (const { name } of tasks) rmSync(record(name))

    // Another process, which has seen no record of them.
    const other = open()
    expect(await stateIn(other, 'waited-for')).toMatchObject({
      state: 'running',
      cause: expect.stringContaining('removed at the host'),
    })
    expect(await other.submit(tasks.slice(0, 1))).toMatchObject([{ ok: true }])
    await expect(other.remove('waited-for')).rejects.toMatchObject({ trouble: 'refused' })
    await other.cancel(['ended'], 0)
    expect(await stateIn(other, 'ended')).toMatchObject({ state: 'lost' })
    const pid = readFileSync(join(scratch, 'ended'), 'utf8').trim()
    expect(existsSync(`/proc/${pid}/environ`) && readFileSync(`/proc/${pid}/environ`, 'utf8') !== '').toBe(
      false,
    )

    const ends = [driver, other].map(
      (one) => new Promise<void>((end) => void one.watch(['waited-for'], () => end())),
    )
    writeFileSync(gate, '')
    await Promise.all(ends)
    for (const one of [driver, other])
      expect(await stateIn(one, 'waited-for')).toMatchObject({ state: 'lost' })
    expect(await other.submit(tasks.slice(0, 1))).toMatchObject([{ ok: true }])
    expect(readFileSync(join(scratch, 'waited-for'), 'utf8')).toMatch(/^\d+\n$/)
  })

  proved(
    'where the host cannot write that a task is given up, it waits with the file, is cancelled by nobody, and never starts',
    async () => {
      const folder = join(scratch, 'home', 'tasks')
      const [gate, ledger] = [join(scratch, 'gate-'), join(scratch, 'ledger')]
      const frozen = frozenBefore(`${gate}$name`)
      const driver = open((script) => asOrdinary(frozen(script)))
      writeFileSync(`${gate}vanished`, '')
      const claims = ['claimed', 'linked'].map((name) => task(name, 'echo begun >> "$1"', ledger))
      const submitted = open(frozen).submit(claims)
      const script = 'echo begun >> "$1"; until [ -e "$2" ]; do sleep 0.05; done'
      await driver.submit([task('vanished', script, ledger, `${gate}claimed`)])
      for (const { name } of claims) await until('the record', 120, () => existsSync(record(name)))
      await until('the start', 120, () => existsSync(ledger))
      expect(await stateIn(driver, 'vanished')).toMatchObject({ state: 'running' })
      rmSync(record('vanished'))
      symlinkSync('nowhere', join(folder, 'linked.lost'))
      chmodSync(folder, 0o500)
      const waiting = (name: string, first: string) =>
        expect.stringMatching(`${first}.*the host cannot write ${join(folder, name)}.lost: `)
      const mayStart = 'not known whether it can still start'
      const isRunning = '^its record was removed .* its processes still run'
      const causes = { claimed: mayStart, linked: mayStart, vanished: isRunning }
      try {
        for (const [name, cause] of Object.entries(causes)) {
          await until('its reason', 120, async () =>
            JSON.stringify(await stateIn(driver, name)).includes('.lost'),
          )
          expect(await stateIn(driver, name)).toMatchObject({ state: 'running', cause: waiting(name, cause) })
          const refusal = { trouble: 'unknown', message: waiting(name, mayStart) }
          await expect(driver.cancel([name], 0)).rejects.toMatchObject(refusal)
        }
      } finally {
        chmodSync(folder, 0o700)
      }
      expect(await stateIn(driver, 'linked')).toMatchObject({ cause: waiting('linked', mayStart) })
      rmSync(join(folder, 'linked.lost'))
      for (const name of Object.keys(causes))
        await until('its loss', 120, async () => (await stateIn(driver, name)).state === 'lost')
      for (const { name } of claims) writeFileSync(`${gate}${name}`, '')
      expect(await submitted).toMatchObject([{ ok: true }, { ok: true }])
      expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
    },
  )

  test('a script that a full disk has cut off, or that was never started, changes nothing about its task or another', async () => {
    const driver = open()
    const names = ['whole', 'torn', 'twice']
    await driver.submit(names.map((name) => task(name, 'exit 3')))
    for (const name of names) await new Promise<void>((end) => void driver.watch([name], () => end()))
    const folder = join(scratch, 'home', 'tasks')
    const times = { submittedAt: 90, zero: 90, ahead: 0 }
    const other = { directory: join(scratch, 'elsewhere'), expectedOutputs: [], sources: [], ...times }
    for (const token of ['0', 'zzzzzzzzzzzzzzzz']) {
      writeFileSync(join(folder, `torn.${token}.run`), '#\n# facts {"directory":"/wo')
      writeFileSync(join(folder, `twice.${token}.run`), `#\n${factsLine(other)}\n`)
    }
    const later = open()
    for (const name of names) {
      expect(await stateIn(later, name)).toMatchObject({ state: 'ended', exitCode: 3 })
      const { manifest } = await later.collect(name)
      expect(manifest.root).toBe(realpathSync(join(scratch, 'work', name, '1')))
    }
  })

  test('a kill is one for memory where the node killed for memory meanwhile, not where it did so before', async () => {
    const counts = join(scratch, 'vmstat')
    writeFileSync(counts, 'oom_kill 5\n')
    const driver = open((script) => script.replaceAll('/proc/vmstat', counts))
    const kinds = { killed: 'kill -9 $$', 'out-of-memory': 'echo "oom_kill 6" > "$1"; kill -9 $$' }
    for (const [name, script] of Object.entries(kinds)) {
      // A cgroup of its own would say it.
      await driver.submit([{ ...task(name, script, counts), memoryLimit: 'rlimit' }])
      await new Promise<void>((end) => void driver.watch([name], () => end()))
    }
    expect(await stateIn(driver, 'killed')).toMatchObject({ reason: 'exited', signal: 'SIGKILL' })
    expect(await stateIn(driver, 'out-of-memory')).toMatchObject({ reason: 'memory', signal: 'SIGKILL' })
  })

  test('a task that is watched, and whose record was removed before it ended, is lost', async () => {
    const driver = open()
    const gate = join(scratch, 'gate')
    await driver.submit([task('watched', 'until [ -e "$1" ]; do sleep 0.05; done', gate)])
    expect(await stateIn(driver, 'watched')).toMatchObject({ state: 'running' })
    rmSync(record('watched'))
    writeFileSync(gate, '')
    await new Promise<void>((end) => void driver.watch(['watched'], () => end()))
    expect(await stateIn(driver, 'watched')).toMatchObject({ state: 'lost' })
  })
})

test('an output counts as delivered exactly where it leads to something within the work directory', () => {
  const root = realpathSync(scratch)
  mkdirSync(join(root, 'w/a/b'), { recursive: true })
  writeFileSync(join(root, 'w/a/file'), '')
  writeFileSync(join(root, 'out'), '')
  const links: Record<string, string> = {
    'w/up': '..',
    'w/in': 'a/b/../file',
    'w/a/b/back': '../../a',
    'w/abs': join(root, 'w/a'),
    'w/out': join(root, 'out'),
    'w/loop': 'loop',
    'w/dangling': 'nothing',
    'w/two': 'in',
    'w/self': '.',
  }
  for (const [path, target] of Object.entries(links)) symlinkSync(target, join(root, path))
  const place = join(root, 'w')
  const printed = execFileSync('/bin/sh', ['-c', `find "$1" ${listingActions}`, 'sh', place])
  const listing = new Map((parseListing(printed).get(place) ?? []).map((found) => [found.path, found]))
  const parts = [
    'a',
    'b',
    'file',
    'up',
    'in',
    'back',
    'abs',
    'out',
    'loop',
    'dangling',
    'two',
    'self',
    'nothing',
    'w',
  ]
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...parts), { minLength: 1, maxLength: 5 }), (path) => {
      const relative = path.join('/')
      let real: boolean
      try {
        real = realpathSync(join(place, relative)).startsWith(`${place}/`)
      } catch {
        real = false
      }
      const lead = leadIn(place, listing, relative)
      const leads = lead.leads === 'inside' && lead.path !== ''
      // A way through a folder that this one does not list may lead in again for the kernel.
      if (leads) expect(real).toBe(true)
      else if (real) expect(relative).toMatch(/up|self|out/)
    }),
    { numRuns: 2000 },
  )
})

test('digests are found under names that sha256sum had to escape', () => {
  const names = ['plain', 'new\nline', 'back\\slash', 'car\rriage', ' leading', '-dash', 'é😀', "quo'te"]
  for (const name of names) writeFileSync(join(scratch, name), name)
  const sums = parseSums(execFileSync('sha256sum', ['--', ...names.map((name) => join(scratch, name))]))
  expect([...sums.keys()].sort()).toEqual(names.map((name) => join(scratch, name)).sort())
})
