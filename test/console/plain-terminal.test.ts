import { expect, test } from '@jest/globals'
import { PassThrough } from 'node:stream'
import { openFrames } from '../../src/domains/console/frames.ts'
import { openPlainTerminal } from '../../src/domains/console/plain-terminal.ts'
import type { ShellStream, SiteShell } from '../../src/shell/site-shell.ts'

test('a recording of 64 MiB ends a terminal without a holder, with that reason', async () => {
  const output = new PassThrough()
  const over = Promise.withResolvers<Awaited<ShellStream['done']>>()
  const isOver = over.promise.then(() => true as const)
  const shell: Pick<SiteShell, 'terminal'> = {
    terminal: () =>
      Promise.resolve({
        ...{ stdin: new PassThrough(), stdout: output, done: over.promise },
        kill: () => over.resolve({ code: null, signal: 'SIGHUP', stderr: '' }),
      }),
  }
  const terminal = await openPlainTerminal(shell as SiteShell, { rows: 24, columns: 80 }, [])
  if (terminal === undefined) throw new Error('there is no terminal')
  const mib = Buffer.alloc(1024 * 1024, 'x')
  const give = async (): Promise<void> => {
    for (let given = 0; given < 80; given++) {
      if ((await Promise.race([isOver, new Promise((resolve) => output.write(mib, resolve))])) === true)
        return
    }
  }
  const given = give()
  const framesOf = openFrames(0)
  let bytes = 0
  let end = ''
  for await (const chunk of terminal.stdout)
    for (const { kind, content } of framesOf(chunk as Buffer))
      if (kind === 'x') end = content.toString()
      else if (kind === 'o') bytes += content.length
  await given
  expect(end).toBe('the recording has reached 64 MiB')
  expect(bytes).toBeGreaterThanOrEqual(64 * mib.length)
  expect(bytes).toBeLessThan(70 * mib.length)
})
