import { afterAll, expect, test } from '@jest/globals'
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { openOutput, openOutputAt } from '../../src/domains/execution-runs/files.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { runFolder } from '../support/run-folder.ts'

const root = mkdtempSync(join(runFolder(), 'orrery-files-'))
const shell = openLocalShell({})
afterAll(async () => {
  await shell.close()
  rmSync(root, { recursive: true })
})

/** An output of this machine, and one of another that is reached by a shell. */
const places = [
  ['here', (path: string) => openOutput(root, path)],
  ['at another machine', (path: string) => openOutputAt(shell, root, path)],
] as const

test.each(places)(
  '%s: outputs are read whatever they are called, and nothing outside is',
  async (_where, open) => {
    for (const name of [
      'plain',
      'ends in a line break\n',
      '\n',
      '-n',
      '$(touch x)',
      "it's; `x` \\",
      '*',
      ' ',
    ]) {
      writeFileSync(join(root, name), `of ${name}`)
      const { stream, sizeBytes } = await open(name)
      expect(await text(stream)).toBe(`of ${name}`)
      expect(sizeBytes).toBe(Buffer.byteLength(`of ${name}`))
    }
    rmSync(join(root, 'leads out'), { force: true })
    symlinkSync('/etc/passwd', join(root, 'leads out'))
    await expect(open('leads out')).rejects.toThrow(/leaves the work directory/)
    await expect(open('../x')).rejects.toThrow(/leaves the work directory/)
    writeFileSync(join(root, 'grows'), '')
    const growing = await open('grows')
    writeFileSync(join(root, 'grows'), 'late')
    expect([await text(growing.stream), growing.sizeBytes]).toEqual(['', 0])
    await expect(open('none')).rejects.toThrow(/none/)
  },
)
