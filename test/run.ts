import { writeFileSync } from 'node:fs'
import { readArguments } from '../src/programs/arguments.ts'
import { filesNamed, testFiles } from './support/named-files.ts'
import { preparePrograms } from './support/prepared-programs.ts'
import {
  interruption,
  notBegun,
  printVerdict,
  readRunOptions,
  runFiles,
  runOptions,
  runUsage,
} from './support/run-files.ts'

// npm test [-- OPTIONS] [PATH…]: runs the gate.

const fileMinutes = 10
const given = readArguments(
  {
    usage: `npm test -- [OPTIONS] [PATH…]
Runs the tests of the gate, or those in files whose path contains a PATH.
${runUsage(fileMinutes)}

npm run proof -- --help shows how the proofs run.`,
    options: runOptions,
    positionals: [0, Infinity],
  },
  ({ values, positionals }) => ({
    selected:
      positionals.length === 0
        ? // Files that are planted to fail run only where they are named.
          testFiles.gate.filter((file) => !file.startsWith('test/planted/'))
        : [...new Set(positionals.flatMap((word) => filesNamed(word, 'gate')))],
    report: values.report,
    options: readRunOptions(values, fileMinutes, positionals.length === 0),
  }),
)

const signal = interruption()
const cannotStart = await preparePrograms()
const verdict =
  cannotStart === undefined
    ? await runFiles(given.selected, given.options, signal)
    : notBegun(given.selected, cannotStart)
printVerdict(verdict)
if (given.report !== undefined) writeFileSync(given.report, `${JSON.stringify(verdict, undefined, 2)}\n`)
process.exitCode = verdict.success ? 0 : 1
