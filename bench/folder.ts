import { chmodSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { removeAtEnd } from '../sites/remover.ts'

const variable = 'ORRERY_BENCH_FOLDER'

/**
 * Creates the folder below which benchmarks write all their files. An environment variable with its
 * path is set in every program that they start. If this process is killed, a surviving shell finds
 * those programs by the variable, ends them and removes the folder (about 12 s later).
 */
export const openBenchFolder = (): { leave(): Promise<void> } => {
  const folder = mkdtempSync(join(tmpdir(), 'orrery-bench-'))
  // Servers under other accounts work below it.
  chmodSync(folder, 0o755)
  const remover = removeAtEnd(folder, { processes: true })
  // The variable is set after the shell starts, because the shell would otherwise end itself with
  // the programs.
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
