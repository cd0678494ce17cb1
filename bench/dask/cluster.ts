import { execFile, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { checkOrder, type Dag } from '../dag.ts'

export const daskVersion = '2026.8.0'

const cacheFolder = (): string =>
  process.getuid?.() === 0 ? '/var/cache/orrery' : join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'orrery')

/** Python of an environment with dask.distributed in the cache folder, made at first use (about half a minute). */
const python = async (): Promise<string> => {
  const folder = join(cacheFolder(), 'bench', `dask-${daskVersion}`)
  const program = join(folder, 'bin/python')
  if (existsSync(program) && spawnSync(program, ['-c', 'import distributed']).status === 0) return program
  process.stderr.write(`  installing dask.distributed ${daskVersion} into ${folder}\n`)
  const system = existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3'
  const run = promisify(execFile)
  try {
    await run(system, ['-m', 'venv', '--clear', folder])
    await run(join(folder, 'bin/pip'), ['install', '--quiet', `dask[distributed]==${daskVersion}`])
  } catch (error) {
    throw new Error(`dask.distributed could not be installed with ${system}; python3 with venv and a package index are needed`, {
      cause: error,
    })
  }
  return program
}

/** Seconds for the whole graph on a fresh cluster of two processes: its first computation, and the second, which is warm. */
export const computeWithDask = async (dag: Dag): Promise<{ first: number; second: number }> => {
  const program = await python()
  const folder = mkdtempSync(join(tmpdir(), 'orrery-dask-'))
  try {
    const file = join(folder, 'dag.json')
    writeFileSync(file, JSON.stringify(dag))
    const { stdout } = await promisify(execFile)(program, [join(import.meta.dirname, 'opponent.py'), file], {
      maxBuffer: 2 ** 26,
      cwd: folder,
    })
    const computations = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { seconds: number; times: Record<string, [number, number]> })
    for (const { times } of computations) checkOrder('dask', dag, new Map(Object.entries(times)))
    const [first, second] = computations
    if (first === undefined || second === undefined) throw new Error(`dask made ${String(computations.length)} computations instead of two`)
    return { first: first.seconds, second: second.seconds }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
