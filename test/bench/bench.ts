import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { expect } from '@jest/globals'

export interface Ended {
  code: number | null
  stdout: string
  stderr: string
}

/** Starts `npm run bench -- ARGUMENTS` without npm around it. */
export const startBench = (
  args: readonly string[],
  environment: Record<string, string> = {},
): { child: ChildProcess; ended: Promise<Ended> } => {
  const child = spawn(process.execPath, [join(import.meta.dirname, '../../bench/run.ts'), ...args], {
    env: { ...process.env, ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const texts = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const)
    child[name].on('data', (chunk: Buffer) => (texts[name] += chunk.toString()))
  return {
    child,
    ended: once(child, 'close').then(([code]: (number | null)[]) => ({ code: code ?? null, ...texts })),
  }
}

/**
 * One tiny round of a benchmark: it ends well and prints its section with goals and sides, or the
 * test fails with what it wrote.
 */
export const tinyRound = async (name: string, environment: Record<string, string> = {}): Promise<void> => {
  const { code, stdout, stderr } = await startBench([name, '--tiny'], environment).ended
  if (code !== 0)
    throw new Error(`npm run bench -- ${name} --tiny ended with ${String(code)}:\n${stderr.slice(-4_000)}`)
  expect(stdout).toContain(`## ${name}\n`)
  expect(stdout).toContain('| figure | measured | goal | aim |  |')
  expect(stdout).toContain('| side | unit | median | range | cold |')
  expect(stdout).not.toMatch(/NaN|undefined|Infinity/)
}
