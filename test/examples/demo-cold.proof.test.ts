import { spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { afterAll, expect, test } from '@jest/globals'
import { runnerFile } from '../../src/embedded/runner-program.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'
import { runnerProgram } from '../support/runner-program.ts'

const program = path.resolve(import.meta.dirname, '../../examples/demo.ts')
const folder = temporaryFolder()
afterAll(() => folder[Symbol.dispose]())

/**
 * A `go` that says that it compiles, waits for a file, and gives what a compiler has made before.
 */
const slowCompiler = (runner: string, began: string, mayEnd: string): string => {
  const bin = path.join(folder.path, 'bin')
  mkdirSync(bin)
  writeFileSync(
    path.join(bin, 'go'),
    `#!/bin/sh
[ "$1" = env ] && exit 0
: > '${began}'
while [ "$1" != -o ]; do shift; done
until [ -e '${mayEnd}' ]; do sleep 0.1; done
cp '${runner}' "$2"
`,
  )
  chmodSync(path.join(bin, 'go'), 0o755)
  return bin
}

test('while the runner of local tasks is being built, the demo waits, and measures after it', async () => {
  const [cold, began, mayEnd] = ['cache', 'began', 'may-end'].map((name) => path.join(folder.path, name)) as [
    string,
    string,
    string,
  ]
  const bin = slowCompiler(await runnerProgram(), began, mayEnd)
  mkdirSync(cold)
  symlinkSync(path.join(cacheDir, 'temporal'), path.join(cold, 'temporal'))
  const child = spawn(process.execPath, [program, '--small', '--output', path.join(folder.path, 'output')], {
    env: {
      PATH: `${bin}:/usr/local/bin:/usr/bin:/bin`,
      HOME: folder.path,
      TMPDIR: folder.path,
      SERVICE_DATA_DIR: path.join(folder.path, 'data'),
      SERVICE_CACHE_DIR: cold,
      SERVICE_CURRENCY: 'EUR',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (said += chunk.toString()))
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  try {
    await until(
      () => {
        if (child.exitCode !== null) throw new Error(`the demo ended:\n${said}`)
        return existsSync(began) && said.includes('first answer after')
      },
      'the service answers while the runner is built',
      300_000,
    )
    await until(
      () => said.includes('another process builds the runner of local tasks; waiting for it'),
      'the demo says what it waits for',
      60_000,
    )
    // It would have begun to measure within a second.
    await new Promise((resolve) => setTimeout(resolve, 3_000))
    expect(said).not.toContain('2/6')
    expect(existsSync(runnerFile(cold))).toBe(false)
    writeFileSync(mayEnd, '')
    await until(() => said.includes('2/6'), 'the demo goes on', 120_000)
    expect(existsSync(runnerFile(cold))).toBe(true)
    expect([await ended, said]).toEqual([0, expect.stringContaining('43 of 43 done')])
    expect(said).toMatch(/43 of 43 done: .* cost 0\.\d+ EUR\n/)
    expect(said).toContain('Costs are in EUR.')
    const page = readFileSync(/^ +timeline +(\/.*)$/m.exec(said)?.[1] ?? '', 'utf8')
    expect(page).toContain('<th>cost, EUR</th>')
  } finally {
    child.kill('SIGTERM')
    await ended
  }
}, 900_000)
