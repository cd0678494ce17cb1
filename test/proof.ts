import { execFileSync } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { availableParallelism, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { configFromEnvironment } from '../src/config.ts'
import { ArgumentError, readArguments } from '../src/programs/arguments.ts'
import { filesOfGroup, proofGroups } from './proof-groups.ts'
import type { FileResult, Verdict } from './support/judge.ts'
import { filesNamed, testFiles } from './support/named-files.ts'
import { preparePrograms } from './support/prepared-programs.ts'
import { sumOf, withRun } from './support/proof-record.ts'
import {
  checkout,
  interruption,
  notBegun,
  numberOf,
  printVerdict,
  readRunOptions,
  runFiles,
  runOptions,
  runUsage,
} from './support/run-files.ts'

// npm run proof [-- OPTIONS] [GROUP…|PATH…]: runs proofs, one group after the other.

const fileMinutes = 60

interface Part {
  /** A group, or the words of paths. */
  name: string
  files: readonly string[]
}

const partsOf = (words: readonly string[]): Part[] => {
  const groups = words.filter((word) => word in proofGroups)
  const paths = words.filter((word) => !(word in proofGroups))
  const files = [...new Set(paths.flatMap((word) => filesNamed(word, 'proofs')))]
  return [
    ...(words.length === 0 ? Object.keys(proofGroups) : groups).map((name) => ({
      name,
      files: filesOfGroup(name, testFiles.proofs),
    })),
    ...(paths.length === 0 ? [] : [{ name: paths.join(' '), files }]),
  ]
}

const given = readArguments(
  {
    usage: `npm run proof -- [OPTIONS] [GROUP…|PATH…]
Runs the proofs of each GROUP, all groups without one, or those in files whose path contains a PATH.
Groups:
  ${Object.keys(proofGroups).join(' ')}
      --rounds N               runs each group N times, with other random cases (default 1)
      --resume                 leaves out the files that have passed on this commit
      --record                 writes a row for each group into docs/proofs.md
${runUsage(fileMinutes)}`,
    options: {
      ...runOptions,
      rounds: { type: 'string', default: '1' },
      resume: { type: 'boolean', default: false },
      record: { type: 'boolean', default: false },
    },
    positionals: [0, Infinity],
  },
  ({ values, positionals }) => {
    const path = positionals.find((word) => !(word in proofGroups))
    if (values.record && path !== undefined)
      throw new ArgumentError(`--record takes whole groups: ${path} is no group`)
    if (values.record && values.testNamePattern !== undefined)
      throw new ArgumentError('--record takes whole groups: leave --testNamePattern out')
    const rounds = numberOf('rounds', values.rounds, 1)
    if (values.resume && rounds > 1)
      throw new ArgumentError('--resume goes on with one round: leave --rounds out')
    return {
      parts: partsOf(positionals),
      rounds,
      resume: values.resume,
      record: values.record,
      report: values.report,
      options: readRunOptions(values, fileMinutes),
    }
  },
)

const git = (...args: string[]): string =>
  execFileSync('git', args, { cwd: checkout, encoding: 'utf8' }).trim()

/** The commit of the checkout, with a `+` where files beside the documents were changed since. */
const commitNow = (): string => {
  const changed = git('status', '--porcelain', '-uno', '--', '.', ':!docs')
  return `${git('rev-parse', '--short=9', 'HEAD')}${changed === '' ? '' : '+'}`
}

const passedFile = join(configFromEnvironment().cacheDir, 'passed-proofs.json')

interface Passed {
  commit: string
  files: Record<string, FileResult>
}

/** The files that passed on this commit. A checkout with changes has none. */
const readPassed = (commit: string): Passed => {
  try {
    const kept = JSON.parse(readFileSync(passedFile, 'utf8')) as Passed
    if (kept.commit === commit && !commit.endsWith('+')) return kept
  } catch {
    // The first run of this machine, or a write that was cut off.
  }
  return { commit, files: {} }
}

const keepPassed = (passed: Passed, verdict: Verdict): void => {
  // What was left out or unsteady runs again, so that the row of its group counts it.
  const again = new Set([
    ...verdict.leftOut.flatMap(({ files }) => files),
    ...verdict.unsteady.map(({ file }) => file),
  ])
  for (const [file, result] of Object.entries(verdict.files))
    if (result.failed === 0 && !again.has(file)) passed.files[file] = result
  mkdirSync(dirname(passedFile), { recursive: true })
  writeFileSync(passedFile, JSON.stringify(passed))
}

const givenSeed = process.env['ORRERY_SEED']
const commit = commitNow()
const passed = readPassed(commit)
const signal = interruption()
const cannotStart = await preparePrograms()

/** Runs a part once. @returns the verdicts of what ran now and of what had passed before */
const play = async ({ name, files }: Part) => {
  const before = Object.fromEntries(
    Object.entries(passed.files).filter(([file]) => given.resume && files.includes(file)),
  )
  const open = files.filter((file) => !(file in before))
  const kept = {
    passed: Object.values(before).reduce((total, result) => total + result.passed, 0),
    ...{ failed: 0, unsteady: [], leftOut: [], files: before },
  }
  if (open.length < files.length)
    process.stdout.write(`${name}: ${files.length - open.length} files have passed on ${commit}\n`)
  if (open.length === 0) return [kept]
  // Each round plays other cases.
  const seed = givenSeed ?? String(randomInt(2 ** 31))
  process.env['ORRERY_SEED'] = seed
  process.stdout.write(`ORRERY_SEED=${seed}\n`)
  const verdict =
    cannotStart === undefined ? await runFiles(open, given.options, signal) : notBegun(open, cannotStart)
  printVerdict(verdict)
  if (given.options.testNamePattern === undefined) keepPassed(passed, verdict)
  return [kept, verdict]
}

const verdicts: Record<string, Awaited<ReturnType<typeof play>>> = {}
const lines: string[] = []
for (const part of given.parts) {
  if (signal.aborted) break
  const { name } = part
  const needs = proofGroups[name]?.needs
  if (needs !== undefined) process.stdout.write(`\n${name}: needs ${needs}\n`)
  const results: Awaited<ReturnType<typeof play>> = []
  for (let round = 0; round < given.rounds && !signal.aborted; round++) results.push(...(await play(part)))
  verdicts[name] = results
  const counts = sumOf(results)
  lines.push(
    `${name}: ${counts.passed} passed, ${counts.failed} failed, ${counts.unsteady} files unsteady, ` +
      `${counts.leftOut} left out, ${counts.minutes} minutes`,
  )
  if (given.record && cannotStart === undefined && !signal.aborted) {
    const document = join(checkout, 'docs/proofs.md')
    const run = {
      ...{ group: name, commit, date: new Date().toISOString().slice(0, 10) },
      machine: `${availableParallelism()} cores, ${Math.round(totalmem() / 2 ** 30)} GiB`,
      ...{ rounds: given.rounds, ...counts },
    }
    writeFileSync(document, withRun(readFileSync(document, 'utf8'), run))
  }
}
if (given.report !== undefined) writeFileSync(given.report, `${JSON.stringify(verdicts, undefined, 2)}\n`)
process.stdout.write(`\n${lines.join('\n')}\n`)
const failed = Object.values(verdicts).some((results) => results.some((result) => result.failed > 0))
process.exitCode = failed || signal.aborted ? 1 : 0
