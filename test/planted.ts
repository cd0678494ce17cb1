import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Verdict } from './support/judge.ts'

// node test/planted.ts: proves on planted files that `npm test` fails where it must. `.ci/run`
// begins with it.

const checkout = join(import.meta.dirname, '..')
const folder = join(import.meta.dirname, 'planted')

const passes = `test('passes', () => undefined)`

/** Files that fail together in one run: each must be named among the reasons. */
const planted = {
  'failing-test': `test('one is two', () => { expect(1).toBe(2) })`,
  'before-all': `beforeAll(() => { throw new Error('no start') }); ${passes}`,
  'after-all': `afterAll(() => { throw new Error('no end') }); ${passes}`,
  'thrown-during-test': `test('waits', async () => {
    setTimeout(() => { throw new Error('thrown beside') }, 10)
    await new Promise((resolve) => setTimeout(resolve, 200))
  })`,
  'rejected-during-test': `test('waits', async () => {
    void Promise.reject(new Error('rejected beside'))
    await new Promise((resolve) => setTimeout(resolve, 200))
  })`,
  'thrown-after-last-test': `test('passes', () => { setTimeout(() => { throw new Error('thrown late') }, 20) })`,
  'rejected-after-last-test':
    `test('passes', () => { setTimeout(() => { void Promise.reject(new Error('rejected ` +
    `late')) ` +
    '}, 20) })',
  'cannot-be-loaded': `import './is-not-there.ts'; ${passes}`,
  'is-no-typescript': `test('passes', () => {`,
  'without-tests': `export {}`,
  'never-resolves': `test('waits', () => new Promise(() => undefined), 300)`,
  'exits-with-0': `test('exits', () => { process.exit(0) })`,
  skip: `test.skip('left out', () => undefined); ${passes}`,
  'skip-group': `describe.skip('left out', () => { ${passes} }); ${passes}`,
  only: `test.only('alone', () => undefined); ${passes}`,
  todo: `test.todo('later'); ${passes}`,
  'missing-need':
    `const { test: demanding } = needs('a package that no machine has' as never); ` +
    `demanding('passes', () => undefined)`,
} as const

const write = (name: string, text: string): string => {
  const path = join(folder, `${name}.test.ts`)
  writeFileSync(
    path,
    `import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'\nimport { needs } ` +
      `from '../support/needs.ts'\n${text}\n`,
  )
  return `test/planted/${name}.test.ts`
}

/** A file that fails in its first round, or in its first rounds, and passes then. */
const failsFirst = (name: string, rounds: number): string =>
  `import { appendFileSync, readFileSync } from 'node:fs'
   test('passes later', () => {
     const file = process.env.ORRERY_TEST_SHARED + '/${name}'
     appendFileSync(file, '.')
     expect(readFileSync(file, 'utf8').length).toBeGreaterThan(${rounds})
   })`

/** Runs the tests as a user does, without servers. */
const run = (
  args: readonly string[],
  environment: Record<string, string> = {},
): { code: number | null; verdict: Verdict | undefined; output: string } => {
  const report = join(mkdtempSync(join(tmpdir(), 'orrery-planted-')), 'verdict.json')
  const { status, stdout, stderr } = spawnSync(
    'npm',
    ['test', '--silent', '--', '--report', report, ...args],
    {
      cwd: checkout,
      encoding: 'utf8',
      env: { ...process.env, CI: 'true', ORRERY_TEST_SERVERS: 'none', ...environment },
      timeout: 600_000,
    },
  )
  let verdict: Verdict | undefined
  try {
    verdict = JSON.parse(readFileSync(report, 'utf8')) as Verdict
  } catch {
    // A run that is refused judges nothing.
  }
  rmSync(join(report, '..'), { recursive: true })
  return { code: status, verdict, output: `${stdout}${stderr}` }
}

const wrong: string[] = []
const expectRun = (title: string, holds: boolean, { code, output }: ReturnType<typeof run>): void => {
  process.stdout.write(`${holds ? 'ok' : 'WRONG'}: ${title}\n`)
  if (!holds)
    wrong.push(`${title} (ended with ${String(code)}):\n${output.split('\n').slice(-40).join('\n')}`)
}

rmSync(folder, { recursive: true, force: true })
mkdirSync(folder)
try {
  const green = write('passes', passes)
  const passed = run([green])
  expectRun('a file that passes gives 0', passed.code === 0 && passed.verdict?.passed === 1, passed)

  const files = Object.entries(planted).map(([name, text]) => write(name, text))
  const failed = run([...files, '--retries', '0'])
  expectRun('planted files give 1', failed.code === 1, failed)
  for (const file of files)
    expectRun(
      `${file} is a reason`,
      failed.verdict?.problems.some((problem) => problem.includes(file)) === true,
      failed,
    )

  const alone = run([write('exits', planted['exits-with-0']), '--retries', '0'])
  expectRun('process.exit(0) in the only file gives 1', alone.code === 1, alone)
  const endless = run([
    write('endless', `test('computes', () => { for (;;); })`),
    '--minutes',
    '0.1',
    '--retries',
    '0',
  ])
  expectRun(
    'a file that never ends gives 1',
    endless.code === 1 && endless.output.includes('did not end within its time'),
    endless,
  )
  const late = run([write('late', planted['rejected-after-last-test']), '--retries', '0'])
  expectRun('a rejection after the last test gives 1', late.code === 1, late)
  const setUp = run([green, '--retries', '0'], { ORRERY_TEST_SERVERS: 'fail' })
  expectRun('an error in the global set-up gives 1', setUp.code === 1, setUp)

  const unsteady = run([write('unsteady', failsFirst('unsteady', 1)), green])
  expectRun(
    'a file that fails once and passes alone gives 0, and is listed',
    unsteady.code === 0 &&
      unsteady.verdict?.passed === 2 &&
      unsteady.verdict.unsteady[0]?.file === 'test/planted/unsteady.test.ts' &&
      unsteady.output.includes('Unsteady'),
    unsteady,
  )
  const thrice = run([write('thrice', failsFirst('thrice', 3)), green])
  expectRun(
    'a file that fails three times gives 1',
    thrice.code === 1 && thrice.verdict?.failed === 1 && thrice.verdict.passed === 1,
    thrice,
  )
  const nine = run(Array.from({ length: 9 }, (_, i) => write(`ninth-${i}`, failsFirst(`ninth-${i}`, 1))))
  expectRun('nine files that fail once give 1', nine.code === 1 && nine.verdict?.failed === 9, nine)
  const died = run([
    write(
      'dies',
      `import { existsSync, writeFileSync } from 'node:fs'
       test('dies once', () => {
         const file = process.env.ORRERY_TEST_SHARED + '/dies'
         if (existsSync(file)) return
         writeFileSync(file, '')
         process.kill(process.pid, 'SIGKILL')
       })`,
    ),
    green,
  ])
  expectRun(
    'a file whose process died and that passes alone is listed',
    died.code === 0 && died.verdict?.unsteady.length === 1,
    died,
  )
  const hangs = run([
    write(
      'a-hangs',
      `import { existsSync, writeFileSync } from 'node:fs'
       test('computes once', () => {
         const file = process.env.ORRERY_TEST_SHARED + '/hangs'
         if (existsSync(file)) return
         writeFileSync(file, '')
         for (;;);
       })`,
    ),
    ...Array.from({ length: 9 }, (_, i) => write(`beside-${i}`, passes)),
    ...['--workers', '1', '--minutes', '0.1'],
  ])
  expectRun(
    'a file that hangs once takes none with it that had not begun',
    hangs.code === 0 && hangs.verdict?.unsteady.length === 1 && hangs.verdict.passed === 10,
    hangs,
  )
  const nowhere = run(['test/is-not-there'])
  expectRun(
    'a path that matches no file gives 2',
    nowhere.code === 2 && nowhere.output.includes('test/is-not-there'),
    nowhere,
  )
  const unnamed = run([green, '-t', 'no test has this name'])
  expectRun('a name that matches no test gives 1', unnamed.code === 1, unnamed)
  const filtered = run([
    write('two', `test('first', () => undefined); test('second', () => { throw new Error('wrong') })`),
    '-t',
    'first',
  ])
  expectRun('a test that the name filter leaves out is no reason', filtered.code === 0, filtered)
} finally {
  rmSync(folder, { recursive: true, force: true })
}
if (wrong.length > 0) process.stderr.write(`\n${wrong.join('\n\n')}\n`)
process.exitCode = wrong.length === 0 ? 0 : 1
