import { existsSync, readdirSync, readFileSync, symlinkSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { hostname } from 'node:os'
import { dirname, join } from 'node:path'
import { expect } from '@jest/globals'
import { identify, stillRuns, signalKnown } from '../../src/embedded/processes.ts'
import type { KnownProcess } from '../../src/embedded/processes.ts'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'
import { needs } from '../support/needs.ts'
import { openTerminal } from './terminal.ts'

const { afterAll, test } = needs('curl')

const root = new URL('../../', import.meta.url).pathname
const folder = temporaryFolder()
const data = join(folder.path, 'data')
let service: KnownProcess | undefined
afterAll(() => {
  if (service !== undefined) signalKnown(service, 'SIGKILL')
  folder[Symbol.dispose]()
})

/** The blocks of one language under a heading of the README, as they stand. */
const blocks = (heading: string, language: string): string[] => {
  const [, section = ''] = readFileSync(join(root, 'README.md'), 'utf8').split(`\n## ${heading}\n`)
  const [own = ''] = section.split('\n## ')
  return [...own.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, 'gm'))].map(
    ([, text = '']) => text,
  )
}

/** The port of the README, or another where a program of this machine has taken it. */
const freePort = async (wanted: number): Promise<number> => {
  const listening = (port: number): Promise<number | undefined> =>
    new Promise((resolve) => {
      const probe = createServer()
      probe.once('error', () => {
        resolve(undefined)
      })
      probe.listen(port, '127.0.0.1', () => {
        const bound = (probe.address() as AddressInfo).port
        probe.close(() => {
          resolve(bound)
        })
      })
    })
  return (await listening(wanted)) ?? (await listening(0)) ?? wanted
}

test('the blocks under "First steps", pasted into a terminal at once, print what the README shows', async () => {
  const commands = blocks('First steps', 'sh')
  const shown = blocks('First steps', 'text').join('').trim().split('\n')
  expect([commands.length > 1, shown.length > 5]).toEqual([true, true])

  // The checkout itself, seen from a folder in which the blocks may leave files.
  for (const name of readdirSync(root))
    if (!name.startsWith('.')) symlinkSync(join(root, name), join(folder.path, name))
  const port = await freePort(8080)
  const environment = {
    PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`,
    HOME: folder.path,
    TMPDIR: folder.path,
    SERVICE_DATA_DIR: data,
    SERVICE_CACHE_DIR: cacheDir,
    ...(port === 8080 ? {} : { SERVICE_LISTEN_ADDRESS: `127.0.0.1:${port}` }),
  }
  const terminal = openTerminal('exec bash --norc --noprofile -i', environment, folder.path)
  const pasted = commands.join('').replaceAll('127.0.0.1:8080', `127.0.0.1:${port}`)
  // A terminal keeps at most 4 KiB that no program has read yet.
  expect(pasted.length).toBeLessThan(3_500)
  terminal.type(`${pasted}echo "the"" end"\n`)
  const log = (): string =>
    existsSync(join(folder.path, 'orrery.log')) ? readFileSync(join(folder.path, 'orrery.log'), 'utf8') : ''
  await until(
    () => {
      const file = join(data, 'ready.json')
      if (service === undefined && existsSync(file))
        service = identify((JSON.parse(readFileSync(file, 'utf8')) as ReadyFacts).pids.daemon)
      return /^the end/m.test(terminal.screen())
    },
    'the blocks have run',
    1_200_000,
  ).catch((error: unknown) => {
    throw new Error(`${String(error)}\n${terminal.screen()}\n${log()}`)
  })
  terminal.close()

  const printed = terminal.screen().split(/[\r\n]+/)
  let from = 0
  for (const line of shown.map((text) =>
    text.replace('HELLO FROM …', `HELLO FROM ${hostname().toUpperCase()}`).replace('…', hostname()),
  )) {
    const at = printed.findIndex((text, index) => index >= from && text.endsWith(line))
    if (at === -1)
      throw new Error(
        `the README shows ${JSON.stringify(line)}, which is missing or out of order:\n${terminal.screen()}\n${log()}`,
      )
    from = at + 1
  }
  expect(service).toBeDefined()
  expect(stillRuns(service!)).toBe(false)
}, 1_300_000)
