import { spawn } from 'node:child_process'
import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { hold, tryHold } from '../../src/embedded/hold.ts'
import { temporaryFolder } from './folder.ts'

test('one of many holds a folder, whatever name it has, and the next one after the release', async () => {
  using folder = temporaryFolder()
  symlinkSync(folder.path, join(folder.path, 'alias'))
  const tries = await Promise.all(
    Array.from({ length: 20 }, (_, i) =>
      tryHold(i % 2 === 0 ? folder.path : join(folder.path, 'alias'), 'daemon'),
    ),
  )
  const holders = tries.filter((held) => held !== undefined)
  expect(holders).toHaveLength(1)
  const other = await tryHold(folder.path, 'another purpose')
  expect(other).toBeDefined()
  await other?.release()
  let waits = 0
  const next = hold(folder.path, 'daemon', () => waits++)
  await new Promise((resolve) => setTimeout(resolve, 300))
  await holders[0]?.release()
  await (await next).release()
  expect(waits).toBeGreaterThan(0)
})

test('the hold of a killed process is free at once', async () => {
  using folder = temporaryFolder()
  const file = join(folder.path, 'holder.ts')
  writeFileSync(
    file,
    `import { tryHold } from ${JSON.stringify(new URL('../../src/embedded/hold.ts', import.meta.url).href)}
     await tryHold(${JSON.stringify(folder.path)}, 'daemon')
      process.stdout.write('held'); setInterval(() => {}, 1000)`,
  )
  const holder = spawn(process.execPath, [file], { stdio: ['ignore', 'pipe', 'inherit'] })
  await new Promise((resolve) => holder.stdout.once('data', resolve))
  expect(await tryHold(folder.path, 'daemon')).toBeUndefined()
  const exit = new Promise((resolve) => holder.once('exit', resolve))
  holder.kill('SIGKILL')
  await exit
  const held = await tryHold(folder.path, 'daemon')
  expect(held).toBeDefined()
  await held?.release()
})
