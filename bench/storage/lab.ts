import { createCipheriv, randomBytes } from 'node:crypto'
import { closeSync, mkdirSync, openSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import type { startDaemon } from '../daemon.ts'

export type Daemon = Awaited<ReturnType<typeof startDaemon>>

/** One file of random bytes. */
export const plantLarge = (file: string, mebibytes: number): void => {
  const cipher = createCipheriv('aes-128-ctr', randomBytes(16), randomBytes(16))
  const zeros = Buffer.alloc(2 ** 20)
  const open = openSync(file, 'w')
  for (let k = 0; k < mebibytes; k += 1) writeSync(open, cipher.update(zeros))
  closeSync(open)
}

/** Files of 4 KiB in folders of 500. */
export const plantSmall = (folder: string, files: number): void => {
  for (let k = 0; k < files; k += 1) {
    const inner = join(folder, `d${Math.floor(k / 500)}`)
    if (k % 500 === 0) mkdirSync(inner, { recursive: true })
    writeFileSync(join(inner, `f${k}`), randomBytes(4_096))
  }
}

/** Settings of a service with a vault, whose local storages are below `root`. */
export const withVault = (root: string): Record<string, string> => {
  const keyFile = join(root, 'key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  return { SERVICE_LOCAL_STORAGE_ROOT: root, SERVICE_VAULT_KEY_FILE: keyFile }
}

/** Seconds of a copy or an archive, from its request to the record of its end. */
export const secondsOfJob = async (daemon: Daemon, path: string, body: object): Promise<number> => {
  const began = performance.now()
  const { id } = (await daemon.call('POST', path, body)).body
  for (;;) {
    const { status, error } = (await daemon.call('GET', `/storage-downloads/${id}/`)).body
    if (status === 'completed' || status === 'ready') return (performance.now() - began) / 1_000
    if (status === 'failed') throw new Error(`${id} failed: ${error}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

export const environmentOf = (id: string, storages: object[], more: object = {}): object => ({
  environment: { id, name: id },
  version: { id: `${id}-v1`, version: 1, status: 'published' },
  storages,
  ...more,
})

export const localStorage = (id: string, endpoint: string): object => ({
  ...{ id, name: id, type: 'local', endpoint },
  configuration: { browseRoots: [{ path: '/' }] },
})
