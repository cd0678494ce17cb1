import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { frameOf, offsetContent, openFrames } from '../../src/domains/console/frames.ts'
import { until } from '../failures/programs.ts'
import { openTerminal } from '../support/console-streams.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'

/** The program that holds a terminal, by itself: its end depends on when it reads what is typed. */

const folder = mkdtempSync(join(runFolder(), 'last-bytes-'))
let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_CONSOLE_ENABLED: 'true', SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() },
  })
  await service.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
})
afterAll(() => service[Symbol.asyncDispose]())

test('a client that sends something after the end of a terminal gets its last bytes', async () => {
  const id = await openTerminal(service, 'here')
  const { externalId } = await service.get(`/console-sessions/${id}/`)
  const [program = ''] = readdirSync(dirname(externalId)).filter((name) => name.startsWith('console-holder-'))
  const holder = join(dirname(externalId), program)
  const directory = join(folder, 'last-bytes')
  execFileSync(holder, ['start', directory, '24', '80'])
  const [go, out] = [join(folder, 'last-bytes-go'), join(folder, 'last-bytes-out')]
  // It finds its pipe full.
  const reader =
    '{ head -c 65536 /dev/zero; "$1" attach "$2" 0; } | ' +
    '{ until [ -e "$3" ]; do sleep 0.1; done; cat > "$4"; }'
  const client = spawn('/bin/sh', ['-c', reader, 'sh', holder, directory, go, out], {
    stdio: ['pipe', 'ignore', 'inherit'],
  })
  const ended = once(client, 'exit')
  client.stdin.write(frameOf('i', Buffer.from("stty -echo; head -c 60000 /dev/zero | tr '\\0' x; exit\n")))
  const isHeld = () =>
    readdirSync('/proc').some((pid) => {
      try {
        return (
          readlinkSync(`/proc/${pid}/cwd`) === directory &&
          readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('\0hold\0')
        )
      } catch {
        return false
      }
    })
  await until('the end of its holder', 120, () => !isHeld())
  // More than a pipe holds: it takes all of it although its holder is gone.
  const sent = Buffer.concat(Array.from({ length: 20_000 }, () => frameOf('k', offsetContent(0))))
  await new Promise<void>((resolve) => client.stdin.write(sent, () => resolve()))
  writeFileSync(go, '')
  await ended
  const frames = openFrames(0)(readFileSync(out).subarray(65_536))
  expect(frames.at(-1)).toMatchObject({ kind: 'x' })
  const shown = Buffer.concat(frames.filter(({ kind }) => kind === 'o').map(({ content }) => content))
  expect(shown.toString().split('x'.repeat(60_000))).toHaveLength(2)
  await service.call('DELETE', `/console-sessions/${id}/`)
})
