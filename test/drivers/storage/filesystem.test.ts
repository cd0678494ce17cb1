import { expect, test } from '@jest/globals'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { openFilesystem } from '../../../src/drivers/storage/filesystem/driver.ts'
import { runFolder } from '../../support/run-folder.ts'
import { storageConformance, storageKinds } from './conformance.ts'
import { hostileFolder } from './hostile.ts'

const opened = () => {
  const base = realpathSync(mkdtempSync(join(runFolder(), 'storage-')))
  mkdirSync(join(base, 'endpoint'))
  const again = () => openFilesystem({ base, below: ['endpoint' as never] })
  const stop = (): Promise<void> => Promise.resolve(rmSync(base, { recursive: true, force: true }))
  return { base, folder: join(base, 'endpoint'), driver: again(), again, stop }
}

storageConformance('a folder of this machine', storageKinds.folder, () => Promise.resolve(opened()))
hostileFolder('a folder of this machine', () => Promise.resolve(opened()), { swaps: 3_000 })

/** Names of entries of a folder, wherever a process has one open. */
const openBelow = (folder: string): string[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        return readdirSync(`/proc/${pid}/fd`).map((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`))
      } catch {
        return []
      }
    })
    .filter((path) => path.startsWith(`${folder}/`))

test('a file that is opened for a caller who has left is closed, and one that is begun is dropped', async () => {
  const { driver, folder, stop } = opened()
  const [file, target] = [['file' as never], ['target' as never]]
  writeFileSync(join(folder, 'file'), 'bytes')
  const left = async (begin: (signal: AbortSignal) => Promise<unknown>): Promise<void> => {
    const leaving = new AbortController()
    const call = begin(leaving.signal)
    leaving.abort(new Error('left'))
    await expect(call).rejects.toThrow('left')
    // The process answers in order: the first of these behind the file, the second behind its end.
    for (const _ of ['opened', 'ended']) await driver.stat(file)
  }
  try {
    await left((signal) => driver.read(file, { signal }))
    expect(openBelow(folder)).toEqual([])
    await left((signal) => driver.write(target, Readable.from(['bytes']), { signal }))
    expect([openBelow(folder), readdirSync(folder)]).toEqual([[], ['file']])
    const part = { upload: 'part', offset: 0, last: false }
    await left((signal) => driver.write(target, Readable.from(['bytes']), { signal, part }))
    expect([openBelow(folder), readdirSync(folder).length]).toEqual([[], 2])
  } finally {
    await driver.close()
    await stop()
  }
})
