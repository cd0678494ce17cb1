import { afterAll, expect, test } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { openLocalDriver } from '../../src/drivers/runtime/local/driver.ts'
import { withKeeping } from '../../src/drivers/transfer/keeping-driver.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { LinkError, type SiteShell } from '../../src/shell/site-shell.ts'
import { runnerProgram } from '../support/runner-program.ts'
import { scratch } from './trees.ts'

/** Files of a machine that ends come to this one before their attempt is over. */

const folder = scratch()
const shell = openLocalShell()
const local = openLocalDriver({ controlDirectory: join(folder.path, 'control'), runnerProgram })
afterAll(async () => {
  await local.close()
  await shell.close()
  folder[Symbol.dispose]()
})

test('the machine refuses the login while its files are brought: the attempt goes on until they are here', async () => {
  const [machine, kept] = [join(folder.path, 'machine'), join(folder.path, 'kept')]
  let [refuses, reading] = [true, 0]
  const refusing: SiteShell = {
    ...shell,
    run: (script, options) =>
      refuses
        ? Promise.reject(new LinkError('login', 'it is going down', { permanent: true }))
        : shell.run(script, options),
  }
  const driver = withKeeping(
    {
      ...local,
      root: async () => machine,
      logs: async (...asked) => {
        reading++
        await delay(100)
        reading--
        return local.logs(...asked)
      },
    },
    {
      from: async () => ({ site: 'cloud/t', host: 'machine:one', shell: refusing, mounts: [] }),
      to: { site: 'local@here', host: 'here', shell, mounts: [] },
      ...{ workRoot: kept, host: 'here' },
    },
  )
  await driver.submit([
    {
      ...{ name: 'makes', directory: join(machine, 'work', 'run', '1') },
      ...{ argv: ['/bin/sh', '-c', 'echo made > out'], environment: {}, stage: [] },
      ...{ expectedOutputs: ['out'], cores: 1, memoryBytes: 0, timeoutSeconds: 0 },
    },
  ])
  while ((await driver.find(['makes'])).get('makes')?.state !== 'ended') await delay(20)

  await expect(driver.collect('makes')).rejects.toMatchObject({
    trouble: 'unknown',
    message: expect.stringContaining('it is going down'),
  })
  expect(reading).toBe(0)
  refuses = false
  const { detail } = await driver.collect('makes')
  expect(detail).toMatchObject({ keptOn: 'here', keptAt: join(kept, 'run', '1') })
  expect(detail).not.toHaveProperty('keptWithoutFiles')
  expect(readFileSync(join(kept, 'run', '1', 'out'), 'utf8')).toBe('made\n')
})
