import { execFile, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { configFromEnvironment } from '../src/config.ts'
import { pythonMissing, systemPython } from './needs.ts'

/** A program in a Python environment in the cache folder, with packages from a package index. */
export interface PythonProgram {
  /** E.g. `dask-2026.8.0`: names the environment's folder. */
  name: string
  /** In pip's syntax, with versions. */
  packages: readonly string[]
  program: string
  /** Arguments with which the program succeeds where the environment is complete. */
  probe: readonly string[]
}

const pathOf = ({ name, program }: PythonProgram): string =>
  join(configFromEnvironment().cacheDir, 'bench', name, 'bin', program)

export const pythonProgramMissing = (wanted: PythonProgram): string | undefined =>
  pythonMissing(pathOf(wanted))

/**
 * Path of the program. The environment is made at first use (about a minute).
 *
 * @throws Error when pip cannot install the packages
 */
export const pythonProgram = async (wanted: PythonProgram): Promise<string> => {
  const program = pathOf(wanted)
  if (existsSync(program) && spawnSync(program, wanted.probe).status === 0) return program
  const folder = join(program, '../..')
  process.stderr.write(`  installing ${wanted.packages.join(' ')} into ${folder}\n`)
  const run = promisify(execFile)
  try {
    await run(systemPython(), ['-m', 'venv', '--clear', folder])
    await run(join(folder, 'bin/pip'), [
      'install',
      '--quiet',
      '--disable-pip-version-check',
      ...wanted.packages,
    ])
  } catch (error) {
    const last = (error as { stderr?: string }).stderr?.trim().split('\n').at(-1) ?? ''
    throw new Error(
      `pip could not install ${wanted.packages.join(' ')}; a package index is needed: ${last}`,
      { cause: error },
    )
  }
  return program
}
