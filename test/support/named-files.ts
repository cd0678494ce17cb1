import { globSync } from 'node:fs'
import { join, relative } from 'node:path'
import { ArgumentError } from '../../src/programs/arguments.ts'
import { checkout } from './run-files.ts'

const all = globSync('test/**/*.test.ts', { cwd: checkout }).toSorted()
const isProof = (file: string): boolean => file.endsWith('.proof.test.ts')

/** The test files of the gate, and those that are proofs, as paths from the checkout. */
export const testFiles = { gate: all.filter((file) => !isProof(file)), proofs: all.filter(isProof) }

/**
 * The files of one kind whose path contains the word.
 * @throws ArgumentError where there is none; it names the other command where that one has some
 */
export const filesNamed = (word: string, kind: keyof typeof testFiles): string[] => {
  const named = (file: string): boolean => file.includes(relative(checkout, join(checkout, word)))
  const matching = testFiles[kind].filter(named)
  if (matching.length > 0) return matching
  if (all.some(named))
    throw new ArgumentError(
      kind === 'proofs'
        ? `${word} is in the gate: npm test -- ${word}`
        : `${word} is a proof: npm run proof -- ${word}`,
    )
  throw new ArgumentError(`no test file matches ${word}: give a part of a path below test/`)
}
