import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { promisify } from 'node:util'

/** Streams of 1 GiB, by a program that does nothing else. */

const program = join(import.meta.dirname, 'http-streams.ts')
const gibibyte = 1024 ** 3
let server: ChildProcess
let port: string

beforeAll(async () => {
  server = spawn(process.execPath, [program, 'serve'], { stdio: ['ignore', 'pipe', 'inherit'] })
  port = String((await once(server.stdout!, 'data'))[0]).trim()
}, 60_000)
afterAll(async () => {
  server.kill()
  await once(server, 'close')
})

test.each(['put', 'get', 'both'])(
  '1 GiB (%s) goes through 32 MiB of memory',
  async (what) => {
    const { stdout } = await promisify(execFile)(process.execPath, [
      '--expose-gc',
      program,
      what,
      port,
      String(gibibyte),
    ])
    const [before = 0, most = Infinity] = stdout.trim().split(' ').map(Number)
    expect(before).toBeGreaterThan(0)
    expect((most - before) / 1024).toBeLessThan(32)
  },
  600_000,
)
