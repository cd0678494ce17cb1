import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sourceMutations, type SourceMutation } from './mutations.ts'
import type { Verdict } from './support/judge.ts'
import { runFolder } from './support/run-folder.ts'

/** The gate has to find this many of the faults. */
const least = 23

const checkout = join(import.meta.dirname, '..')
const copy = mkdtempSync(join(runFolder(), 'mutated-'))
const caught: string[] = []

beforeAll(() => {
  const files = execFileSync('git', ['ls-files', '-z'], { cwd: checkout, maxBuffer: 2 ** 26 })
  execFileSync('tar', ['-cf', join(copy, 'tree.tar'), '--null', '-T', '-'], { cwd: checkout, input: files })
  execFileSync('tar', ['-xf', 'tree.tar'], { cwd: copy })
  rmSync(join(copy, 'tree.tar'))
  symlinkSync(join(checkout, 'node_modules'), join(copy, 'node_modules'))
})
afterAll(() => rmSync(copy, { recursive: true, force: true }))

/** Runs files of the gate in the copy. @returns what failed */
const failures = async (tests: readonly string[]): Promise<string[]> => {
  const report = join(copy, 'verdict.json')
  rmSync(report, { force: true })
  const { CI: _ci, ...environment } = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !name.startsWith('ORRERY_TEST_')),
  )
  const run = spawn(
    process.execPath,
    ['test/run.ts', '--report', report, '--workers', '2', ...tests.map((name) => `test/${name}.test.ts`)],
    { cwd: copy, env: environment, stdio: 'ignore' },
  )
  await once(run, 'exit')
  return (JSON.parse(readFileSync(report, 'utf8')) as Verdict).problems
}

const mutate = ({ file, replace, by }: SourceMutation): string => {
  const text = readFileSync(join(copy, file), 'utf8')
  expect([file, text.split(replace).length - 1]).toEqual([file, 1])
  writeFileSync(
    join(copy, file),
    text.replace(replace, () => by),
  )
  return text
}

test('without a fault all of these files pass', async () => {
  expect(await failures([...new Set(sourceMutations.flatMap(({ tests }) => tests))])).toEqual([])
}, 1_200_000)

test.each(sourceMutations)(
  '$name',
  async (mutation) => {
    const honest = mutate(mutation)
    try {
      if ((await failures(mutation.tests)).length > 0) caught.push(mutation.name)
    } finally {
      writeFileSync(join(copy, mutation.file), honest)
    }
  },
  1_200_000,
)

test(`at least ${String(least)} of ${String(sourceMutations.length)} faults are found`, () => {
  const missed = sourceMutations.map(({ name }) => name).filter((name) => !caught.includes(name))
  process.stderr.write(`found ${String(caught.length)}; missed: ${missed.join('; ') || 'none'}\n`)
  expect(missed.length).toBeLessThanOrEqual(sourceMutations.length - least)
})
