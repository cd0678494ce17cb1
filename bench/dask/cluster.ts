import { execFile } from 'node:child_process'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { checkOrder, type Dag } from '../dag.ts'
import { newFolder } from '../folder.ts'
import { pythonProgram, pythonProgramMissing, type PythonProgram } from '../python.ts'

export const daskVersion = '2026.8.0'

const python: PythonProgram = {
  ...{ name: `dask-${daskVersion}`, packages: [`dask[distributed]==${daskVersion}`], program: 'python' },
  probe: ['-c', 'import distributed'],
}

export const daskMissing = (): string | undefined => pythonProgramMissing(python)

/** Python with dask.distributed. */
export const prepareDask = (): Promise<string> => pythonProgram(python)

/**
 * Seconds for the whole graph on a fresh cluster of two processes: its first computation, and the
 * second, which is warm.
 */
export const computeWithDask = async (dag: Dag): Promise<{ first: number; second: number }> => {
  const program = await prepareDask()
  const folder = newFolder('dask-')
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
    if (first === undefined || second === undefined)
      throw new Error(`dask made ${String(computations.length)} computations instead of two`)
    return { first: first.seconds, second: second.seconds }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
