import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { consoleEnvironment } from '../support/consoles.ts'
import { openConsoles } from './consoles.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

/** What a console has begun goes on without the daemon. */

const dataDir = dataFolder()
let programs: Programs
let consoles: ReturnType<typeof openConsoles>
beforeAll(async () => {
  programs = openPrograms(dataDir, { environment: { SERVICE_CONSOLE_ENABLED: 'true' } })
  consoles = openConsoles(programs)
  await programs.startDaemon()
  await programs.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
}, 300_000)
afterAll(async () => {
  await programs.stop()
  removeFolder(dataDir)
}, 60_000)

test('a command goes on while the daemon is killed, runs once, and its record has its output', async () => {
  const answer = programs
    .post('/console-commands/', {
      resourceId: 'here',
      command: 'date +%s%N; sleep 8; echo over',
      timeoutSeconds: 60,
    })
    .catch(() => undefined)
  const { id } = await until('its run', 60, async () => {
    const [newest] = await programs.get('/console-commands/?limit=1')
    const found = newest && (await programs.get(`/console-commands/${newest.id}/`))
    return found?.live?.phase === 'running' ? found : undefined
  })
  await new Promise((resolve) => setTimeout(resolve, 2_000))
  await programs.killDaemon()
  await answer
  await programs.startDaemon()
  const record = await until('its end', 90, async () => {
    const found = await programs.get(`/console-commands/${id}/`)
    return found.status === 'running' ? undefined : found
  })
  expect(record).toMatchObject({
    status: 'completed',
    exitCode: 0,
    stdout: expect.stringMatching(/^\d+\nover\n$/),
  })
}, 300_000)

test('a terminal goes on while the daemon is killed in the middle of 10 MiB of output: the record has every byte, and the client attaches again', async () => {
  await consoles.hitInTheMiddle('here', consoles.restart)
}, 300_000)
