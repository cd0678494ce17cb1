import { expect, test } from '@jest/globals'
import { execFileSync, fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { openFilesystem } from '../../../src/drivers/storage/filesystem/driver.ts'
import type { FromHost } from '../../../src/drivers/storage/filesystem/host.ts'
import { temporaryName } from '../../../src/drivers/storage/paths.ts'
import { until } from '../../failures/programs.ts'
import { runFolder } from '../../support/run-folder.ts'
import { proved } from '../../support/share.ts'
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
    // The process answers in order: this one behind the file.
    await driver.stat(file)
    await until('what was opened is closed', 120, () => openBelow(folder).length === 0)
  }
  try {
    await left((signal) => driver.read(file, { signal }))
    await left((signal) => driver.write(target, Readable.from(['bytes']), { signal }))
    expect(readdirSync(folder)).toEqual(['file'])
    const part = { upload: 'part', offset: 0, last: false }
    await left((signal) => driver.write(target, Readable.from(['bytes']), { signal, part }))
    expect(readdirSync(folder)).toHaveLength(2)
  } finally {
    await driver.close()
    await stop()
  }
})

/** The process that touches the folder, with one thread for reads and writes. */
const hostAt = (base: string) => {
  const file = join(import.meta.dirname, '../../../src/drivers/storage/filesystem/host.ts')
  const child = fork(file, [], {
    serialization: 'advanced',
    execArgv: [],
    env: { UV_THREADPOOL_SIZE: '1', NODE_NO_WARNINGS: '1' },
  })
  const heard: FromHost[] = []
  const answers = new Map<number, (message: FromHost) => void>()
  child.on('message', (message: FromHost) => {
    heard.push(message)
    if (message !== 'reading') answers.get(message.id)?.(message)
  })
  child.send({ base, below: ['endpoint'] })
  let last = 0
  const ask = (call: string, ...args: unknown[]): Promise<FromHost> => {
    last += 1
    const { promise, resolve } = Promise.withResolvers<FromHost>()
    answers.set(last, resolve)
    child.send({ id: last, call, args })
    return promise
  }
  const mayOpen = (files: string): void =>
    void execFileSync('prlimit', [`--pid=${child.pid}`, `--nofile=${files}:`])
  return { ask, heard, mayOpen, stop: () => void child.kill('SIGKILL') }
}

test('the bytes of a dropped file that still wait for a thread go into no other file', async () => {
  const { base, driver, folder, stop } = opened()
  writeFileSync(join(folder, 'large'), '')
  truncateSync(join(folder, 'large'), 64 * 1024 * 1024)
  const host = hostAt(base)
  try {
    // The process numbers its files in order.
    const [large, left, other] = [1, 2, 3]
    await host.ask('open', ['large'])
    await host.ask('create', ['left'], false, undefined, 0)
    const answers = [
      host.ask('read', large, 0, 64 * 1024 * 1024),
      host.ask('append', left, Buffer.alloc(1_000, 'x')),
      host.ask('drop', left),
      host.ask('create', ['other'], false, undefined, 0),
      host.ask('append', other, Buffer.from('of another client')),
    ]
    for (const answer of await Promise.all(answers)) expect(answer).toHaveProperty('answer')
    expect(await host.ask('commit', other, {})).toHaveProperty('answer')
    expect(readdirSync(folder).toSorted()).toEqual(['large', 'other'])
    expect(readFileSync(join(folder, 'other'), 'utf8')).toBe('of another client')
  } finally {
    host.stop()
    await driver.close()
    await stop()
  }
})

test('a process that may open no more files is busy: the request is no fault of its caller', async () => {
  const { base, driver, folder, stop } = opened()
  writeFileSync(join(folder, 'file'), 'content')
  const host = hostAt(base)
  const faultOfStat = async (): Promise<unknown> => {
    const answer = await host.ask('stat', ['file'])
    return typeof answer === 'object' && 'fault' in answer ? answer.fault.fault : 'none'
  }
  try {
    expect(await faultOfStat()).toBe('none')
    host.mayOpen('4')
    expect(await faultOfStat()).toBe('busy')
    host.mayOpen('1024')
    expect(await faultOfStat()).toBe('none')
  } finally {
    host.stop()
    await driver.close()
    await stop()
  }
})

test('a file that has other bytes than were written gets no name', async () => {
  const { driver, folder, stop } = opened()
  const longer = async function* () {
    yield Buffer.alloc(1024 * 1024, 'x')
    const [temporary = ''] = readdirSync(folder)
    truncateSync(join(folder, temporary), 8 * 1024 * 1024)
    yield Buffer.from('end')
  }
  try {
    const writing = driver.write(['file' as never], Readable.from(longer(), { objectMode: false }))
    await expect(writing).rejects.toMatchObject({
      fault: 'changed',
      message: '"file" has 8388608 bytes at the storage, and 1048579 were written; send it again',
    })
    expect(readdirSync(folder)).toEqual([])
  } finally {
    await driver.close()
    await stop()
  }
})

proved('the last part of a large file keeps its call alive while the whole file is read', async () => {
  const { base, driver, folder, stop } = opened()
  const size = 128 * 1024 * 1024
  const temporary = join(folder, temporaryName(['file' as never], 'part'))
  writeFileSync(temporary, '')
  truncateSync(temporary, size)
  const host = hostAt(base)
  try {
    await host.ask('create', ['file'], false, 'part', size)
    expect(await host.ask('commit', 1, {})).toMatchObject({ answer: { entry: { sizeBytes: size } } })
    expect(host.heard.filter((message) => message === 'reading')).toHaveLength(2)
  } finally {
    host.stop()
    await driver.close()
    await stop()
  }
})

test('a part that fails while another one goes on behind it leaves no hole in the file', async () => {
  const { driver, folder, stop } = opened()
  const [path, mebibyte] = [['file' as never], 2 ** 20]
  const content = randomBytes(3 * mebibyte)
  const part = { upload: 'u', offset: mebibyte, last: false }
  const kept = (count: number) =>
    until(`${count} bytes`, 120, async () => (await driver.received!(path, 'u')) === count)
  await driver.write(path, Readable.from([content.subarray(0, mebibyte)]), {
    part: { ...part, offset: 0 },
  })
  const [one, other] = [new PassThrough(), new PassThrough()]
  const failing = driver.write(path, one, { part })
  failing.catch(() => undefined)
  one.write(content.subarray(mebibyte, 2 * mebibyte))
  await kept(2 * mebibyte)
  const going = driver.write(path, other, {
    part: { ...part, offset: 2 * mebibyte, last: true },
    sizeBytes: content.length,
  })
  going.catch(() => undefined)
  other.write(content.subarray(2 * mebibyte, 2.5 * mebibyte))
  await kept(2.5 * mebibyte)
  one.destroy(new Error('other bytes than announced'))
  await expect(failing).rejects.toThrow('announced')
  other.end(content.subarray(2.5 * mebibyte))
  await expect(going).rejects.toMatchObject({ fault: 'away' })
  expect(readdirSync(folder)).not.toContain('file')
  expect(await driver.received!(path, 'u')).toBe(mebibyte)
  await driver.close()
  await stop()
})
