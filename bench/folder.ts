import { chmodSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { removeAtEnd } from '../sites/remover.ts'

const variable = 'ORRERY_BENCH_FOLDER'

/**
 * Opens the folder below which benchmarks keep all that they write. It is in the environment of every program that they start: when this process
 * is killed, a shell that outlives it finds those programs by it, ends them and removes the folder (about 12 s later).
 */
export const openBenchFolder = (): { leave(): Promise<void> } => {
  const folder = mkdtempSync(join(tmpdir(), 'orrery-bench-'))
  // Servers of other accounts work below it.
  chmodSync(folder, 0o755)
  const remover = removeAtEnd(folder, { processes: true })
  // Behind it: the shell would end itself with the programs.
  process.env[variable] = `${folder}/`
  return remover
}

/** A new folder of a benchmark, e.g. for `daemon-`. Any account may pass through it. */
export const newFolder = (prefix: string): string => {
  const root = process.env[variable]
  if (root === undefined) throw new Error('no folder for benchmarks is open: start them by npm run bench')
  const folder = mkdtempSync(join(root, prefix))
  chmodSync(folder, 0o755)
  return folder
}
